#include "millrace/state/published_names.h"

#include <algorithm>
#include <set>

#include "millrace/base/error.h"

namespace millrace::state {
namespace {

const std::vector<Family>& families() {
  static const std::vector<Family> all{
      {"vit.", "vit.encoder.layer.", {"classifier.", "decoder.", "vit.pooler.", "vit.embeddings.mask_token"}},
      {"bert.", "bert.encoder.layer.", {"cls.", "classifier.", "qa_outputs.", "bert.pooler."}},
      {"transformer.", "transformer.h.", {"lm_head.", "score.", "classifier.", "qa_outputs.", "multiple_choice_head."}},
  };
  return all;
}

std::string first_part(const std::string& name) { return name.substr(0, name.find('.') + 1); }

// "x.LayerNorm.gamma" is today's "x.LayerNorm.weight".
std::string with_weight_and_bias(const std::string& name) {
  const std::string norm = "LayerNorm.";
  for (const auto& [old_word, word] : {std::pair("gamma", "weight"), std::pair("beta", "bias")}) {
    if (name.ends_with(norm + old_word)) return name.substr(0, name.size() - std::string(old_word).size()) + word;
  }
  return name;
}

}  // namespace

const Family* family_of(const graph::Graph& graph) {
  for (const Family& family : families()) {
    for (const graph::Param& param : graph.params) {
      if (param.name.starts_with(family.base)) return &family;
    }
  }
  return nullptr;
}

std::map<std::string, std::string> today_names(const std::string& path, const Family* family, const graph::Graph& graph,
                                               const std::map<std::string, Shape>& shapes) {
  const auto has_base = [&](const auto& tensor) { return tensor.first.starts_with(family->base); };
  const bool leaves_base_out = family != nullptr && std::none_of(shapes.begin(), shapes.end(), has_base);
  std::set<std::string> outside_base;  // first parts of names that are whole without it
  if (leaves_base_out) {
    for (const graph::Param& param : graph.params) outside_base.insert(first_part(param.name));
    for (const std::string& name : family->other_tensors) outside_base.insert(first_part(name));
  }
  std::map<std::string, std::string> in_file;
  for (const auto& [name, shape] : shapes) {
    std::string today = family == nullptr ? name : with_weight_and_bias(name);
    if (leaves_base_out && !outside_base.contains(first_part(today))) today = family->base + today;
    const auto [other, is_new] = in_file.emplace(today, name);
    if (!is_new) {
      fail_input("{}: holds both {} and {}, which are one parameter; remove one", path, other->second, name);
    }
  }
  return in_file;
}

std::vector<std::string> published_names(const graph::Param& param) {
  const std::string fused = ".qkv.";
  const size_t at = param.name.find(fused);
  if (at == std::string::npos) return {param.name};
  std::vector<std::string> names;
  for (const char* part : {".query.", ".key.", ".value."}) {
    names.push_back(std::string(param.name).replace(at, fused.size(), part));
  }
  return names;
}

Shape published_shape(const graph::Param& param) {
  if (param.stored_transposed) return {param.shape[1], param.shape[0]};
  const auto parts = static_cast<int64_t>(published_names(param).size());
  Shape shape;
  if (param.name == "vit.embeddings.cls_token") shape = {1, 1};
  if (is_position_grid(param)) shape = {1};
  for (int axis = 0; axis < param.shape.rank(); ++axis) {
    shape.append(axis == 0 ? param.shape[0] / parts : param.shape[axis]);
  }
  return shape;
}

bool is_position_grid(const graph::Param& param) { return param.name == "vit.embeddings.position_embeddings"; }

}  // namespace millrace::state
