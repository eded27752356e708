// The Python face: forebay._native. Arrays are checked here once; below this file sizes are trusted.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "maxsim_documents.hpp"
#include "program.hpp"
#include "segments.hpp"

namespace nb = nanobind;
using namespace forebay;

namespace {

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Matrix = Array<const float, 2>;
using Vector = Array<const float, 1>;
using Ids = Array<const std::int64_t, 1>;

void require(bool is_true, const char* what) {
  if (!is_true) throw std::invalid_argument(what);
}

const Kernels& find_kernels(const std::string& name) {
  for (const Kernels* k : {avx512_kernels(), avx2_kernels(), plain_kernels()})
    if (k && name == k->name) return *k;
  throw std::invalid_argument("this processor has no kernels '" + name + "'");
}

std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const Kernels* k : {avx512_kernels(), avx2_kernels(), plain_kernels()})
    if (k) found.emplace_back(k->name);
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

Floats copy(const Vector& values) {
  Floats floats(values.size());
  std::copy_n(values.data(), values.size(), floats.data());
  return floats;
}

int width_of(const Program& program, int slot) {
  require(slot >= 0 && slot < static_cast<int>(program.slots().size()), "there is no such slot");
  return program.slots()[slot].width;
}

void embed(Program& program, int dst, const std::vector<std::pair<Matrix, int>>& tables) {
  Op op{.kind = Op::Kind::embed, .dst = dst};
  for (const auto& [rows, source] : tables) {
    require(static_cast<int>(rows.shape(1)) == width_of(program, dst), "a table is not as wide as its slot");
    require(source >= 0 && source < 3, "there is no such source");
    op.tables.push_back({rows.data(), static_cast<long>(rows.shape(0)), static_cast<Source>(source)});
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

void layer_norm(Program& program, int src, int dst, const Vector& weight, const Vector& bias, float eps) {
  const auto width = static_cast<std::size_t>(width_of(program, src));
  require(weight.size() == width && bias.size() == width, "a norm of another width than its slot");
  require(width_of(program, dst) == width_of(program, src), "slots of other widths");
  program.append({.kind = Op::Kind::layer_norm, .src = src, .dst = dst, .weight = copy(weight), .bias = copy(bias), .eps = eps});
}

void attention(Program& program, int src, int dst, int num_heads, const std::string& precision) {
  const int width = width_of(program, dst);
  require(num_heads > 0 && width % num_heads == 0 && width_of(program, src) == 3 * width, "slots of other widths");
  require(program.slots()[src].is_global && program.slots()[dst].is_global, "attention needs global slots");
  program.append({.kind = Op::Kind::attention,
                  .src = src,
                  .dst = dst,
                  .num_heads = num_heads,
                  .attention = program.kernels().attention[static_cast<int>(find_precision(precision))]});
}

void show(Program& program, int src, int state) {
  width_of(program, src);
  program.append({.kind = Op::Kind::show, .src = src, .state = state});
}

using Bias = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;

void run(Program& program, const Ids& ids, const Ids& positions, std::optional<Ids> types, const Ids& borders,
         std::optional<Bias> bias, Array<float, 3> out, int threads, const std::string& cut) {
  const auto tokens = ids.size();
  require(positions.size() == tokens && (!types || types->size() == tokens), "ids, positions and types differ in length");
  require(borders.size() > 0 && borders.data()[0] == 0, "borders must begin with 0");
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < borders.size(); ++i) {
    require(borders.data()[i] >= borders.data()[i - 1], "borders must not fall");
    longest = std::max(longest, borders.data()[i] - borders.data()[i - 1]);
  }
  require(borders.data()[borders.size() - 1] == static_cast<std::int64_t>(tokens), "borders must end with the ids");
  const auto states = static_cast<std::size_t>(program.num_states());
  require(out.shape(1) == tokens && (out.shape(0) == 1 || out.shape(0) == states), "out must be [1 or states, tokens, width]");
  require(!bias || ((bias->stride(2) == 1 || bias->shape(2) == 1) && static_cast<std::int64_t>(bias->shape(1)) >= longest &&
                    static_cast<std::int64_t>(bias->shape(2)) >= longest), "the bias does not cover the longest sequence");
  require(threads > 0 && threads <= 1024, "threads must be 1 to 1024");
  const Step step{{ids.data(), positions.data(), types ? types->data() : nullptr},
                  borders.data(),
                  static_cast<int>(borders.size()) - 1,
                  bias ? bias->data() : nullptr,
                  bias ? static_cast<long>(bias->stride(0)) : 0,
                  bias ? static_cast<long>(bias->stride(1)) : 0,
                  out.data(),
                  out.shape(0) == states,
                  threads};
  const Cut how = cut == "groups" ? Cut::groups : cut == "rows" ? Cut::rows : Cut::automatic;
  const nb::gil_scoped_release release;
  program.run(step, how);
}

void sum_segments(const Matrix& rows, const Ids& starts, const Ids& lens, const Vector& weights, Array<float, 2> out) {
  require(starts.size() == lens.size() && out.shape(0) == lens.size() && out.shape(1) == rows.shape(1), "wrong shapes");
  const auto most = static_cast<std::int64_t>(rows.shape(0));
  std::int64_t total = 0;
  for (std::size_t i = 0; i < lens.size(); ++i) {
    const std::int64_t start = starts.data()[i], length = lens.data()[i];
    require(start >= 0 && length >= 0 && start <= most && length <= most - start, "a segment goes past the rows");
    total += length;
  }
  require(total == static_cast<std::int64_t>(weights.size()), "there must be one weight a row of the segments");
  const nb::gil_scoped_release release;
  weighted_sums(rows.data(), static_cast<long>(rows.shape(1)), starts.data(), lens.data(), static_cast<long>(lens.size()),
                weights.data(), out.data());
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
  nb::class_<PackedLinear>(m, "PackedLinear")
      .def("__init__", [](PackedLinear* self, const std::string& kernels, const Matrix& weight, std::optional<Vector> bias,
                          const std::string& precision) {
        require(!bias || bias->size() == weight.shape(0), "the bias must have one value a row of the weight");
        new (self) PackedLinear(find_kernels(kernels), find_precision(precision), weight.data(), bias ? bias->data() : nullptr,
                                static_cast<int>(weight.shape(0)), static_cast<int>(weight.shape(1)));
      }, nb::arg("kernels"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("precision") = "float32");
  nb::class_<Program>(m, "Program")
      .def("__init__", [](Program* self, const std::string& kernels, const std::vector<std::pair<int, bool>>& slots) {
        std::vector<Slot> made;
        for (const auto& [width, is_global] : slots) made.push_back({width, is_global});
        new (self) Program(find_kernels(kernels), std::move(made));
      }, nb::arg("kernels"), nb::arg("slots"))
      .def("embed", &embed, nb::arg("dst"), nb::arg("tables"), nb::keep_alive<1, 3>())
      .def("linear", &linear, nb::arg("src"), nb::arg("dst"), nb::arg("weights"), nb::arg("activation"), nb::arg("residual"))
      .def("layer_norm", &layer_norm, nb::arg("src"), nb::arg("dst"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"))
      .def("attention", &attention, nb::arg("src"), nb::arg("dst"), nb::arg("num_heads"),
           nb::arg("precision") = "float32")
      .def("show", &show, nb::arg("src"), nb::arg("state"))
      .def("run", &run, nb::arg("ids"), nb::arg("positions"), nb::arg("types").none(), nb::arg("borders"),
           nb::arg("bias").none(), nb::arg("out"), nb::arg("threads"), nb::arg("cut") = "automatic");
  m.def("weighted_sums", &sum_segments, nb::arg("rows"), nb::arg("starts"), nb::arg("lens"), nb::arg("weights"),
        nb::arg("out"), "Sums of weighted rows over segments.");
  m.def("max_sim", &max_sim, nb::arg("kernels"), nb::arg("query"), nb::arg("arrays"), nb::arg("lens"), nb::arg("out"),
        nb::arg("threads"), "MaxSim of a query with documents that lie end to end in arrays.");
  m.def("run_linear", &run_linear, nb::arg("x"), nb::arg("weights"), nb::arg("residual").none(), nb::arg("activation"),
        nb::arg("out"));
  m.def("activate", &activate, nb::arg("kernels"), nb::arg("activation"), nb::arg("values"));
}
