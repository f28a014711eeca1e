#include "millrace/job/yaml_tree.h"

#include "millrace/base/error.h"
#include "millrace/job/text.h"
#include "millrace/job/yaml_document.h"

namespace millrace::job {
namespace {

constexpr int kDeepest = 32;
constexpr int kMostNodes = 1'000'000;

class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& file_name) : file_(file_name) {}

  YamlTree build(const YAML::Node& node, int line, int depth = 0) {
    if (!node.Mark().is_null()) line = node.Mark().line + 1;
    if (depth > kDeepest || ++nodes_ > kMostNodes) fail_input("{}:{}: nested too deeply", file_, line);
    YamlTree tree;
    tree.line = line;
    if (node.IsScalar()) {
      tree.kind = YamlTree::Kind::Text;
      tree.text = node.Scalar();
    } else if (node.IsSequence()) {
      tree.kind = YamlTree::Kind::List;
      for (const YAML::Node& item : node) tree.items.push_back(build(item, line, depth + 1));
    } else if (node.IsMap()) {
      tree.kind = YamlTree::Kind::Map;
      for (const auto& entry : node) add_entry(tree, entry.first, entry.second, depth);
    }
    return tree;
  }

 private:
  void add_entry(YamlTree& map, const YAML::Node& key, const YAML::Node& value, int depth) {
    const int line = key.Mark().is_null() ? map.line : key.Mark().line + 1;
    if (!key.IsScalar()) fail_input("{}:{}: a key must be a word", file_, line);
    for (const YamlTree::Entry& other : map.entries) {
      if (other.key != key.Scalar()) continue;
      fail_input("{}:{}: {} is given twice, first on line {}", file_, line, in_quotes(other.key), other.line);
    }
    map.entries.push_back({key.Scalar(), line, build(value, line, depth + 1)});
  }

  const std::string& file_;
  int nodes_ = 0;
};

}  // namespace

YamlTree parse_yaml(const std::string& text, const std::string& file_name, const std::string& kind,
                    const std::string& example) {
  if (text.find('\0') != std::string::npos) {
    fail_input("{}: not a text file; a {} is written in YAML", file_name, kind);
  }
  return TreeBuilder(file_name).build(load_document(text, file_name, kind, example), 1);
}

}  // namespace millrace::job
