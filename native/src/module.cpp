// The Python face: forebay._native. Arrays are checked here and in step.hpp; below these files sizes are trusted.
#include <nanobind/stl/shared_ptr.h>

#include <map>

#include "maxsim_documents.hpp"
#include "program.hpp"
#include "segments.hpp"
#include "step.hpp"

using namespace forebay;

namespace {

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> found{avx512_kernels(), avx512_basic_kernels(), avx2_kernels(), avx2_basic_kernels(),
                                    plain_kernels()};
  std::erase(found, nullptr);
  return found;
}

const Kernels& find_kernels(const std::string& name) {
  for (const Kernels* k : all_kernels())
    if (name == k->name) return *k;
  throw std::invalid_argument("this processor has no kernels '" + name + "'");
}

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const Kernels* k : all_kernels()) found.emplace_back(k->name);
  return found;
}

Activation find_activation(const std::string& name) {
  static const std::map<std::string, Activation> table{
      {"none", Activation::none}, {"gelu_erf", Activation::gelu_erf}, {"gelu_tanh", Activation::gelu_tanh},
      {"relu", Activation::relu}, {"silu", Activation::silu},         {"tanh", Activation::tanh}};
  const auto found = table.find(name);
  if (found == table.end()) throw std::invalid_argument("unknown activation '" + name + "'");
  return found->second;
}

Precision find_precision(const std::string& name) {
  static const std::map<std::string, Precision> table{
      {"float32", Precision::float32}, {"bfloat16", Precision::bfloat16}, {"int8", Precision::int8}};
  const auto found = table.find(name);
  if (found == table.end()) throw std::invalid_argument("unknown precision '" + name + "'");
  return found->second;
}

bool has_precision(const std::string& kernels, const std::string& precision) {
  return find_kernels(kernels).linear[static_cast<int>(find_precision(precision))] != nullptr;
}

std::string form_of(const std::string& kernels, const std::string& precision) {
  const LinearKernel* linear = find_kernels(kernels).linear[static_cast<int>(find_precision(precision))];
  require(linear, "these kernels lack this precision");
  return linear->form;
}

bool attends_in_bfloat16(const std::string& kernels, const std::string& precision) {
  return find_kernels(kernels).attention[static_cast<int>(find_precision(precision))]->precision == Precision::bfloat16;
}

Floats copy(const Vector& values) {
  Floats floats(values.size());
  std::copy_n(values.data(), values.size(), floats.data());
  return floats;
}

int width_of(const Program& program, int slot) {
  require(slot >= 0 && slot < static_cast<int>(program.slots().size()), "there is no such slot");
  return program.slots()[slot].width;
}

void embed(Program& program, int dst, const std::vector<std::pair<EitherMatrix, int>>& tables, float factor) {
  Op op{.kind = Op::Kind::embed, .dst = dst, .factor = factor};
  for (const auto& [table, source] : tables) {
    const auto [count, width] = std::visit([](const auto& t) { return std::pair{t.shape(0), t.shape(1)}; }, table);
    require(static_cast<int>(width) == width_of(program, dst), "a table is not as wide as its slot");
    require(source >= 0 && source < 3, "there is no such source");
    const Matrix* const rows = std::get_if<Matrix>(&table);
    const Halves* const halves = std::get_if<Halves>(&table);
    op.tables.push_back({rows ? rows->data() : nullptr, halves ? halves->data() : nullptr, static_cast<long>(count),
                         static_cast<Source>(source)});
  }
  program.append(std::move(op));
}

void linear(Program& program, int src, int dst, std::shared_ptr<PackedLinear> weights, const std::string& activation,
            int residual) {
  require(weights->kernels == &program.kernels(), "the weights are packed for other kernels");
  require(weights->in == width_of(program, src) && weights->out == width_of(program, dst), "slots of other widths");
  require(residual < 0 || width_of(program, residual) == weights->out, "a residual of another width");
  require(src != dst, "a linear layer cannot write where it reads");
  program.append({.kind = Op::Kind::linear,
                  .src = src,
                  .dst = dst,
                  .residual = residual,
                  .linear = std::move(weights),
                  .activation = find_activation(activation)});
}

void layer_norm(Program& program, int src, int dst, const Vector& weight, std::optional<Vector> bias, float eps) {
  const auto width = static_cast<std::size_t>(width_of(program, src));
  require(weight.size() == width && (!bias || bias->size() == width), "a norm of another width than its slot");
  require(width_of(program, dst) == width_of(program, src), "slots of other widths");
  Op op{.kind = Op::Kind::layer_norm, .src = src, .dst = dst, .weight = copy(weight), .eps = eps};
  if (bias) op.bias = copy(*bias);
  program.append(std::move(op));
}

void rms_norm(Program& program, int src, int dst, const Vector& weight, float eps, int residual) {
  const int width = width_of(program, src);
  require(static_cast<int>(weight.size()) == width, "a norm of another width than its slot");
  require(width_of(program, dst) == width && (residual < 0 || width_of(program, residual) == width), "slots of other widths");
  program.append({.kind = Op::Kind::rms_norm, .src = src, .dst = dst, .residual = residual, .weight = copy(weight), .eps = eps});
}

void gate(Program& program, int src, int dst, const std::string& activation) {
  require(width_of(program, src) == 2 * width_of(program, dst), "slots of other widths");
  program.append({.kind = Op::Kind::gate, .src = src, .dst = dst, .activation = find_activation(activation)});
}

// Heads of queries, heads of keys, their size, whether they alternate.
using HeadNumbers = std::tuple<int, int, int, bool>;

Heads read_heads(const Program& program, int src, const HeadNumbers& numbers) {
  const auto [count, kv_count, size, is_alternating] = numbers;
  require(count > 0 && kv_count > 0 && size > 0 && count % kv_count == 0, "heads must be a multiple of those of keys");
  require(!is_alternating || count == kv_count, "alternating heads have keys of their own");
  const Heads heads{count, kv_count, size, is_alternating};
  require(heads.width() == width_of(program, src), "slots of other widths");
  require(program.slots()[src].is_global, "attention needs global slots");
  return heads;
}

void turn(Program& program, int src, const HeadNumbers& heads, std::optional<Matrix> weights, float eps, int angles) {
  Op op{.kind = Op::Kind::turn, .src = src, .eps = eps, .attention = {.heads = read_heads(program, src, heads)}};
  op.angles = angles;
  if (weights) {
    require(weights->shape(0) == 2 && static_cast<int>(weights->shape(1)) == op.attention.heads.size, "norms of another width");
    op.weight = Floats(weights->size());
    std::copy_n(weights->data(), weights->size(), op.weight.data());
  }
  program.append(std::move(op));
}

void keep(Program& program, int src, const HeadNumbers& heads, int layer) {
  program.append({.kind = Op::Kind::keep, .src = src, .attention = {.heads = read_heads(program, src, heads), .layer = layer}});
}

void attention(Program& program, int src, int dst, const HeadNumbers& numbers, float scale, bool is_causal, int window,
               float soft_cap, int layer, const std::string& precision) {
  const Heads heads = read_heads(program, src, numbers);
  require(width_of(program, dst) == heads.count * heads.size, "slots of other widths");
  require(program.slots()[dst].is_global, "attention needs global slots");
  require(window >= 0 && soft_cap >= 0 && layer >= 0, "window, soft cap and layer must not be below 0");
  const AttentionKernel* kernel = program.kernels().attention[static_cast<int>(find_precision(precision))];
  program.append({.kind = Op::Kind::attention,
                  .src = src,
                  .dst = dst,
                  .attention = {heads, layer, scale, is_causal, window, soft_cap, kernel}});
}

void show(Program& program, int src, int state) {
  width_of(program, src);
  program.append({.kind = Op::Kind::show, .src = src, .state = state});
}

// Returns how many rows the segments have together.
std::int64_t check_segments(const Matrix& rows, const Ids& starts, const Ids& lens, const Array<float, 2>& out) {
  require(starts.size() == lens.size() && out.shape(0) == lens.size() && out.shape(1) == rows.shape(1), "wrong shapes");
  const auto most = static_cast<std::int64_t>(rows.shape(0));
  std::int64_t total = 0;
  for (std::size_t i = 0; i < lens.size(); ++i) {
    const std::int64_t start = starts.data()[i], length = lens.data()[i];
    require(start >= 0 && length >= 0 && start <= most && length <= most - start, "a segment goes past the rows");
    total += length;
  }
  return total;
}

void sum_segments(const Matrix& rows, const Ids& starts, const Ids& lens, const std::optional<Vector>& weights,
                  Array<float, 2> out) {
  const std::int64_t total = check_segments(rows, starts, lens, out);
  require(!weights || total == static_cast<std::int64_t>(weights->size()), "there must be one weight a row of the segments");
  const nb::gil_scoped_release release;
  weighted_sums(rows.data(), static_cast<long>(rows.shape(1)), starts.data(), lens.data(), static_cast<long>(lens.size()),
                weights ? weights->data() : nullptr, out.data());
}

void find_maxima(const Matrix& rows, const Ids& starts, const Ids& lens, Array<float, 2> out) {
  check_segments(rows, starts, lens, out);
  const nb::gil_scoped_release release;
  maxima(rows.data(), static_cast<long>(rows.shape(1)), starts.data(), lens.data(), static_cast<long>(lens.size()),
         out.data());
}

void scale_to_unit(const Matrix& rows, Array<float, 2> out, float least) {
  require(out.shape(0) == rows.shape(0) && out.shape(1) == rows.shape(1), "wrong shapes");
  const nb::gil_scoped_release release;
  unit_rows(rows.data(), static_cast<long>(rows.shape(0)), static_cast<long>(rows.shape(1)), out.data(), least);
}

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

// Documents lie end to end in each of the arrays; lens counts the rows of all of them.
void max_sim(const std::string& kernels, const Matrix& query, const std::vector<Rows>& arrays, const Ids& lens,
             Array<float, 1> out, int threads) {
  require(out.size() == lens.size(), "there must be one score a document");
  require(threads > 0 && threads <= 1024, "threads must be 1 to 1024");
  std::vector<Document> documents;
  documents.reserve(lens.size());
  for (const Rows& rows : arrays) {
    require(rows.shape(1) == query.shape(1), "query and documents have vectors of other widths");
    require(rows.stride(1) == 1 || rows.shape(1) <= 1 || rows.shape(0) == 0, "a vector's numbers must lie side by side");
    // Documents without rows stand behind those of the array before them.
    std::int64_t done = 0;
    const auto most = static_cast<std::int64_t>(rows.shape(0));
    while (documents.size() < lens.size()) {
      const std::int64_t own = lens.data()[documents.size()];
      require(own >= 0 && (own <= most - done || done == most), "a document goes past its array");
      if (own > 0 && done == most) break;
      documents.push_back({rows.data() + done * rows.stride(0), static_cast<long>(rows.stride(0)), static_cast<int>(own)});
      done += own;
    }
    require(done == most, "there are more rows than the documents have");
  }
  require(documents.size() == lens.size(), "there are fewer rows than the documents have");
  const nb::gil_scoped_release release;
  max_sims(find_kernels(kernels), query.data(), static_cast<int>(query.shape(0)), static_cast<int>(query.shape(1)), documents,
           out.data(), threads);
}

// The single operations, for tests.
void run_linear(const Matrix& x, const PackedLinear& w, std::optional<Matrix> residual, const std::string& activation,
                Array<float, 2> out) {
  require(static_cast<int>(x.shape(1)) == w.in && static_cast<int>(out.shape(1)) == w.out && x.shape(0) == out.shape(0) &&
              (!residual || (residual->shape(0) == out.shape(0) && residual->shape(1) == out.shape(1))), "wrong shapes");
  const int rows = static_cast<int>(x.shape(0));
  const Floats scratch(w.kernel->scratch(rows, w.in));
  w.kernel->run({x.data(), w.in, w.weight.data(), w.bias.data(), residual ? residual->data() : nullptr, w.out, out.data(),
                 w.out, rows, w.in, w.out, find_activation(activation), scratch.data()});
}

void activate(const std::string& kernels, const std::string& activation, Array<float, 1> values) {
  find_kernels(kernels).activate(find_activation(activation), values.data(), static_cast<int>(values.size()));
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a model that lives until the interpreter ends is no fault
  m.doc() = "Forebay's native kernels for x86-64 processors.";
  m.def("kernels", &names, "The instruction sets that this processor has, the best first.");
  m.def("has_precision", &has_precision, nb::arg("kernels"), nb::arg("precision"),
        "Whether these kernels have linear layers of this precision on this processor.");
  m.def("form_of", &form_of, nb::arg("kernels"), nb::arg("precision"),
        "By which instructions these kernels' linear layers of this precision multiply.");
  m.def("attends_in_bfloat16", &attends_in_bfloat16, nb::arg("kernels"), nb::arg("precision"),
        "Whether attention beside linear layers of this precision rounds what it multiplies to bfloat16.");
  nb::class_<PackedLinear>(m, "PackedLinear")
      .def("__init__", [](PackedLinear* self, const std::string& kernels, const Matrix& weight, std::optional<Vector> bias,
                          const std::string& precision) {
        require(!bias || bias->size() == weight.shape(0), "the bias must have one value a row of the weight");
        const Kernels& chosen = find_kernels(kernels);
        const nb::gil_scoped_release release;  // several layers are packed at once
        new (self) PackedLinear(chosen, find_precision(precision), weight.data(), bias ? bias->data() : nullptr,
                                static_cast<int>(weight.shape(0)), static_cast<int>(weight.shape(1)));
      }, nb::arg("kernels"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("precision") = "float32");
  nb::class_<Program>(m, "Program")
      .def("__init__", [](Program* self, const std::string& kernels, const std::vector<std::pair<int, bool>>& slots) {
        std::vector<Slot> made;
        for (const auto& [width, is_global] : slots) made.push_back({width, is_global});
        new (self) Program(find_kernels(kernels), std::move(made));
      }, nb::arg("kernels"), nb::arg("slots"))
      .def("embed", &embed, nb::arg("dst"), nb::arg("tables"), nb::arg("factor") = 1.0f, nb::keep_alive<1, 3>())
      .def("linear", &linear, nb::arg("src"), nb::arg("dst"), nb::arg("weights"), nb::arg("activation"), nb::arg("residual"))
      .def("layer_norm", &layer_norm, nb::arg("src"), nb::arg("dst"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("eps"))
      .def("rms_norm", &rms_norm, nb::arg("src"), nb::arg("dst"), nb::arg("weight"), nb::arg("eps"), nb::arg("residual"))
      .def("gate", &gate, nb::arg("src"), nb::arg("dst"), nb::arg("activation"))
      .def("turn", &turn, nb::arg("src"), nb::arg("heads"), nb::arg("weights").none(), nb::arg("eps"), nb::arg("angles"))
      .def("keep", &keep, nb::arg("src"), nb::arg("heads"), nb::arg("layer"))
      .def("attention", &attention, nb::arg("src"), nb::arg("dst"), nb::arg("heads"), nb::arg("scale"),
           nb::arg("is_causal") = false, nb::arg("window") = 0, nb::arg("soft_cap") = 0.0f, nb::arg("layer") = 0,
           nb::arg("precision") = "float32")
      .def("show", &show, nb::arg("src"), nb::arg("state"))
      .def("run", &run, nb::arg("ids"), nb::arg("positions"), nb::arg("types").none(), nb::arg("borders"),
           nb::arg("bias").none(), nb::arg("out"), nb::arg("threads"), nb::arg("cut") = "automatic",
           nb::arg("seen") = nb::none(), nb::arg("angles") = AngleTables(), nb::arg("pages") = nb::none());
  m.def("weighted_sums", &sum_segments, nb::arg("rows"), nb::arg("starts"), nb::arg("lens"),
        nb::arg("weights").none(), nb::arg("out"), "Sums of weighted rows over segments.");
  m.def("maxima", &find_maxima, nb::arg("rows"), nb::arg("starts"), nb::arg("lens"), nb::arg("out"),
        "Maxima of rows over segments.");
  m.def("unit_rows", &scale_to_unit, nb::arg("rows"), nb::arg("out"), nb::arg("least"), "Rows scaled to unit length.");
  m.def("max_sim", &max_sim, nb::arg("kernels"), nb::arg("query"), nb::arg("arrays"), nb::arg("lens"), nb::arg("out"),
        nb::arg("threads"), "MaxSim of a query with documents that lie end to end in arrays.");
  m.def("run_linear", &run_linear, nb::arg("x"), nb::arg("weights"), nb::arg("residual").none(), nb::arg("activation"),
        nb::arg("out"));
  m.def("activate", &activate, nb::arg("kernels"), nb::arg("activation"), nb::arg("values"));
}
