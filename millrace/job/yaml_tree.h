// A YAML file as a tree of plain data, each node with its line: for readers in folders that know no YAML library.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace millrace::job {

struct YamlTree {
  enum class Kind { Null, Text, List, Map };
  Kind kind = Kind::Null;
  int line = 0;      // from 1
  std::string text;  // of Text
  std::vector<YamlTree> items;
  struct Entry;
  std::vector<Entry> entries;  // of Map, in the order written; no key twice
};
struct YamlTree::Entry {
  std::string key;
  int line = 0;
  YamlTree value;
};

// `kind` and `example` are for messages: "cluster file", "name: my-cluster". Anchors are followed; what would grow
// without bound through them is refused.
YamlTree parse_yaml(const std::string& text, const std::string& file_name, const std::string& kind,
                    const std::string& example);

}  // namespace millrace::job
