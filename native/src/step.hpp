// A step's arrays from Python, checked once; below this file sizes are trusted.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "program.hpp"

namespace forebay {

namespace nb = nanobind;

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Matrix = Array<const float, 2>;
using Halves = Array<const std::uint16_t, 2>;  // bfloat16, for which NumPy has no type
using EitherMatrix = std::variant<Matrix, Halves>;
using Vector = Array<const float, 1>;
using Ids = Array<const std::int64_t, 1>;
using Bias = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;

// Tables of angles [rows, half | half], and the row of each token.
using AngleTables = std::vector<std::pair<Matrix, Ids>>;

// Keys and values [layers, slots, width]; the slots of the step's tokens; for neighbouring sequences their number and
// the slots [number, tokens before and in this step] of each, none where they begin with this step.
using Slots = Array<const std::int64_t, 2>;
using Pages = std::tuple<Array<float, 3>, Array<float, 3>, Ids, std::vector<std::pair<int, std::optional<Slots>>>>;

inline void require(bool is_true, const char* what) {
  if (!is_true) throw std::invalid_argument(what);
}

inline void require_within(const std::int64_t* values, std::size_t count, std::size_t end, const char* what) {
  require(std::all_of(values, values + count, [&](std::int64_t x) { return x >= 0 && x < static_cast<std::int64_t>(end); }),
          what);
}

inline std::int64_t read_borders(const Ids& borders, std::size_t tokens) {
  require(borders.size() > 0 && borders.data()[0] == 0, "borders must begin with 0");
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < borders.size(); ++i) {
    require(borders.data()[i] >= borders.data()[i - 1], "borders must not fall");
    longest = std::max(longest, borders.data()[i] - borders.data()[i - 1]);
  }
  require(borders.data()[borders.size() - 1] == static_cast<std::int64_t>(tokens), "borders must end with the ids");
  return longest;
}

inline std::vector<Angles> read_angles(const AngleTables& tables, std::size_t tokens, const Program& program) {
  std::vector<Angles> angles;
  for (const auto& [table, rows] : tables) {
    require(rows.size() == tokens, "there must be one row of angles a token");
    require_within(rows.data(), tokens, table.shape(0), "a token's angles are not in their table");
    angles.push_back({table.data(), rows.data(), static_cast<int>(table.shape(1) / 2)});
  }
  program.check_angles(angles);
  return angles;
}

inline Kept read_pages(const Pages& pages, const Ids& borders, const Program& program) {
  const auto& [keys, values, slots, segments] = pages;
  const std::size_t count = keys.shape(1), sequences = borders.size() - 1;
  for (int i = 0; i < 3; ++i) require(keys.shape(i) == values.shape(i), "keys and values differ in shape");
  program.check_kept(static_cast<int>(keys.shape(0)), static_cast<int>(keys.shape(2)));
  require(static_cast<std::int64_t>(slots.size()) == borders.data()[sequences], "there must be one slot a token");
  require_within(slots.data(), slots.size(), count, "a slot is not in the pool");
  Kept kept{keys.data(), values.data(), static_cast<long>(count * keys.shape(2)), static_cast<long>(keys.shape(2)),
            slots.data(), {}, {}, false};
  std::vector<bool> is_new(count, false);
  for (std::size_t i = 0; i < slots.size(); ++i) is_new[slots.data()[i]] = true;
  for (const auto& [number, own] : segments)
    for (int i = 0; i < number; ++i) {
      const std::size_t seq = kept.before.size();
      require(seq < sequences, "there are more segments than sequences");
      const auto length = borders.data()[seq + 1] - borders.data()[seq];
      const std::int64_t whole = own ? static_cast<std::int64_t>(own->shape(1)) : length;
      require(whole >= length && (!own || static_cast<int>(own->shape(0)) == number), "slots of another shape");
      kept.before.push_back(static_cast<int>(whole - length));
      kept.kept.push_back(own ? own->data() + i * whole : nullptr);
      const std::int64_t *first = kept.kept.back(), *last = first + kept.before.back();
      require_within(first, last - first, count, "a slot is not in the pool");
      kept.is_shared = kept.is_shared || std::any_of(first, last, [&](std::int64_t slot) { return is_new[slot]; });
    }
  require(kept.before.size() == sequences, "there are fewer segments than sequences");
  return kept;
}

inline void run(Program& program, const Ids& ids, const Ids& positions, std::optional<Ids> types, const Ids& borders,
                std::optional<Bias> bias, Array<float, 3> out, int threads, const std::string& cut, std::optional<Ids> seen,
                const AngleTables& angles, const std::optional<Pages>& pages) {
  const auto tokens = ids.size();
  require(positions.size() == tokens && (!types || types->size() == tokens), "ids, positions and types differ in length");
  const std::int64_t longest = read_borders(borders, tokens);
  const auto states = static_cast<std::size_t>(program.num_states());
  require(out.shape(1) == tokens && (out.shape(0) == 1 || out.shape(0) == states), "out must be [1 or states, tokens, width]");
  require(!bias || ((bias->stride(2) == 1 || bias->shape(2) == 1) && static_cast<std::int64_t>(bias->shape(1)) >= longest &&
                    static_cast<std::int64_t>(bias->shape(2)) >= longest), "the bias does not cover the longest sequence");
  require(!bias || !pages, "a step that keeps keys has no bias");
  require(threads > 0 && threads <= 1024, "threads must be 1 to 1024");
  require(!seen || seen->size() == borders.size() - 1, "there must be one number of seen tokens a sequence");
  for (std::size_t i = 0; seen && i + 1 < borders.size(); ++i)
    require(seen->data()[i] >= 0 && seen->data()[i] <= borders.data()[i + 1] - borders.data()[i],
            "more tokens are seen than there are");
  const std::optional<Kept> kept = pages ? std::optional(read_pages(*pages, borders, program)) : std::nullopt;
  const Step step{{ids.data(), positions.data(), types ? types->data() : nullptr},
                  borders.data(),
                  static_cast<int>(borders.size()) - 1,
                  bias ? bias->data() : nullptr,
                  bias ? static_cast<long>(bias->stride(0)) : 0,
                  bias ? static_cast<long>(bias->stride(1)) : 0,
                  seen ? seen->data() : nullptr,
                  read_angles(angles, tokens, program),
                  kept ? &*kept : nullptr,
                  out.data(),
                  out.shape(0) == states,
                  threads};
  const Cut how = cut == "groups" ? Cut::groups : cut == "rows" ? Cut::rows : cut == "columns" ? Cut::columns : Cut::automatic;
  const nb::gil_scoped_release release;
  program.run(step, how);
}

}  // namespace forebay
