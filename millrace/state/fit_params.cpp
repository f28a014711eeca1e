#include "millrace/state/fit_params.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "millrace/base/error.h"
#include "millrace/state/position_grid.h"
#include "millrace/state/published_names.h"

namespace millrace::state {
namespace {

// "a, b, c and 4 more"
std::string first_few(std::vector<std::string> names) {
  constexpr size_t kFew = 3;
  const std::string rest = names.size() > kFew ? fmt::format(" and {} more", names.size() - kFew) : "";
  if (names.size() > kFew) names.resize(kFew);
  return fmt::format("{}{}", fmt::join(names, ", "), rest);
}

// Some files keep axes of extent 1 in front, for the batch.
Shape without_leading_ones(const Shape& shape) {
  Shape rest;
  for (int64_t extent : shape) {
    if (rest.rank() > 0 || extent != 1) rest.append(extent);
  }
  return rest;
}

bool fits(const Shape& stored, const Shape& wanted) {
  return stored == wanted || without_leading_ones(stored) == without_leading_ones(wanted);
}

// 0 where the stored table cannot be resized to the parameter's.
int64_t stored_grid_side(const graph::Param& param, const Shape& stored) {
  const Shape table = without_leading_ones(stored);
  if (!is_position_grid(param) || table.rank() != 2 || table[1] != param.shape[1]) return 0;
  return grid_side(param.shape[0]) == 0 ? 0 : grid_side(table[0]);
}

// "classifier" of "classifier.weight".
std::string layer_of(const std::string& param) { return param.substr(0, param.rfind('.')); }

// The keys of a job that say how large a model is, by an axis of a parameter (as it is here).
struct SizeKey {
  const char* param_ends_with;
  int axis;
  const char* key;
};
constexpr SizeKey kSizeKeys[] = {
    {"embeddings.word_embeddings.weight", 0, "model.vocabulary"},
    {"transformer.wte.weight", 0, "model.vocabulary"},
    {"embeddings.word_embeddings.weight", 1, "model.width"},
    {"transformer.wte.weight", 1, "model.width"},
    {"patch_embeddings.projection.weight", 0, "model.width"},
    {"patch_embeddings.projection.weight", 1, "model.channels"},
    {"patch_embeddings.projection.weight", 2, "model.patch"},
    {"layer.0.intermediate.dense.weight", 0, "model.mlp"},
    {"h.0.mlp.c_fc.weight", 0, "model.mlp"},
};

// Blocks that any of these names is of: one more than the largest number.
template <typename Names, typename NameOf>
int64_t num_blocks(const std::string& blocks, const Names& names, NameOf name_of) {
  int64_t count = 0;
  for (const auto& entry : names) {
    const std::string& name = name_of(entry);
    if (!name.starts_with(blocks)) continue;
    int32_t number = 0;
    const auto read = std::from_chars(name.data() + blocks.size(), name.data() + name.size(), number);
    if (read.ec == std::errc()) count = std::max<int64_t>(count, int64_t{number} + 1);
  }
  return count;
}

class Fitter {
 public:
  Fitter(const std::string& path, const graph::Graph& graph, const std::map<std::string, Shape>& shapes)
      : path_(path),
        graph_(graph),
        shapes_(shapes),
        family_(family_of(graph)),
        in_file_(today_names(path, family_, graph, shapes)) {
    for (const auto& [today, name] : in_file_) unused_.insert(today);
  }

  Fit fit() {
    for (const graph::Param& param : graph_.params) fit_.sources.push_back(source_of(param));
    start_heads_anew();
    look_at_unused();
    throw_faults();
    return std::move(fit_);
  }

 private:
  // A file may hold a parameter under our own name too.
  std::vector<std::string> tensors_of(const graph::Param& param) const {
    if (in_file_.contains(param.name)) return {param.name};
    std::vector<std::string> names = published_names(param);
    const bool all_there = std::all_of(names.begin(), names.end(), [&](auto& name) { return in_file_.contains(name); });
    return all_there ? names : std::vector<std::string>();
  }

  Source source_of(const graph::Param& param) {
    const std::vector<std::string> tensors = tensors_of(param);
    if (tensors.empty()) {
      if (param.is_head) {
        anew_.emplace(layer_of(param.name), "it is not in the file");
      } else {
        for (const std::string& name : published_names(param)) {
          if (unused_.erase(name) == 0) missing_.push_back(name);
        }
      }
      return {};
    }
    Source source{{}, param.stored_transposed ? Source::Change::Transpose : Source::Change::None};
    const Shape wanted = tensors.size() > 1 || param.stored_transposed ? published_shape(param) : param.shape;
    for (const std::string& today : tensors) {
      unused_.erase(today);
      const std::string& name = in_file_.at(today);
      source.tensors.push_back(name);
      const Shape& stored = shapes_.at(name);
      if (fits(stored, wanted)) continue;
      if (const int64_t side = stored_grid_side(param, stored); side > 0) {
        source.change = Source::Change::ResizeGrid;
        const int64_t here = grid_side(param.shape[0]);
        fit_.notes.push_back(
            fmt::format("{} is resized: a grid of {}x{} in the file, {}x{} here", param.name, side, side, here, here));
      } else if (param.is_head) {
        anew_.emplace(layer_of(param.name),
                      fmt::format("{} is {} in the file, {} here", name, stored.str(), wanted.str()));
      } else {
        of_other_shape_.push_back(fmt::format("{} is {} and not {}", name, stored.str(), wanted.str()));
        look_at_sizes(param, stored);
      }
    }
    return source;
  }

  // What the job would have to say for this tensor to fit.
  void look_at_sizes(const graph::Param& param, const Shape& stored) {
    if (stored.rank() != param.shape.rank()) return;
    for (const SizeKey& size : kSizeKeys) {
      if (!param.name.ends_with(size.param_ends_with)) continue;
      const int stored_axis = param.stored_transposed ? 1 - size.axis : size.axis;
      if (stored[stored_axis] != param.shape[size.axis]) suggest(size.key, stored[stored_axis]);
    }
  }

  void suggest(const char* key, int64_t value) { suggestions_.push_back(fmt::format("{}: {}", key, value)); }

  // Weight and bias of a layer belong together: a stored bias says nothing to a new weight.
  void start_heads_anew() {
    for (size_t i = 0; i < graph_.params.size(); ++i) {
      const graph::Param& param = graph_.params[i];
      if (param.is_head && anew_.contains(layer_of(param.name))) fit_.sources[i] = {};
    }
    for (const auto& [layer, reason] : anew_) fit_.notes.push_back(fmt::format("{} starts anew: {}", layer, reason));
  }

  void look_at_unused() {
    std::vector<std::string> other_tasks;
    for (const std::string& today : unused_) {
      const auto begins = [&](const std::string& start) { return today.starts_with(start); };
      const bool known =
          family_ != nullptr && std::any_of(family_->other_tensors.begin(), family_->other_tensors.end(), begins);
      (known ? other_tasks : unexpected_).push_back(in_file_.at(today));
    }
    if (!other_tasks.empty()) fit_.notes.push_back("not used of the file: " + first_few(other_tasks));
    if (family_ == nullptr) return;
    const int64_t there = num_blocks(family_->blocks, in_file_, [](const auto& entry) { return entry.first; });
    const int64_t here = num_blocks(family_->blocks, graph_.params, [](const auto& param) { return param.name; });
    if (there > 0 && there != here) suggest("model.layers", there);
  }

  void throw_faults() const {
    std::vector<std::string> faults;
    if (!missing_.empty()) faults.push_back("missing " + first_few(missing_));
    if (!unexpected_.empty()) faults.push_back("unexpected " + first_few(unexpected_));
    if (!of_other_shape_.empty()) faults.push_back("of another shape " + first_few(of_other_shape_));
    if (faults.empty()) return;
    if (!suggestions_.empty()) faults.push_back(fmt::format("write {}", fmt::join(suggestions_, ", ")));
    fail_input("{}: does not hold the parameters of {}: {}", path_, graph_.name, fmt::join(faults, "; "));
  }

  const std::string& path_;
  const graph::Graph& graph_;
  const std::map<std::string, Shape>& shapes_;
  const Family* family_;
  const std::map<std::string, std::string> in_file_;  // today's name to the file's own
  std::set<std::string> unused_;                      // by today's names
  std::map<std::string, std::string> anew_;           // layers of heads, and why
  std::vector<std::string> missing_, unexpected_, of_other_shape_, suggestions_;
  Fit fit_;
};

}  // namespace

Fit fit_params(const std::string& path, const graph::Graph& graph, const std::map<std::string, Shape>& shapes) {
  return Fitter(path, graph, shapes).fit();
}

}  // namespace millrace::state
