#include "millrace/job/yaml_document.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>
#include <vector>

#include "millrace/base/error.h"

namespace millrace::job {
namespace {

class DocumentStarts : public YAML::EventHandler {
 public:
  std::vector<YAML::Mark> marks;

  void OnDocumentStart(const YAML::Mark& mark) override { marks.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Where the first two documents begin. YAML::LoadAll has no such bound: before a ',' that begins a document it stays
// where it is and finds empty documents until memory ends.
std::vector<YAML::Mark> first_document_starts(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.marks.size() < 2 && parser.HandleNextDocument(starts)) {
  }
  return starts.marks;
}

}  // namespace

YAML::Node load_document(const std::string& text, const std::string& file_name, const std::string& kind,
                         const std::string& example) {
  const auto place = [&](const YAML::Mark& mark) {
    return mark.is_null() ? file_name : fmt::format("{}:{}", file_name, mark.line + 1);
  };
  YAML::Node document;
  std::vector<YAML::Mark> starts;
  try {
    starts = first_document_starts(text);
    document = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    fail_input("{}: not valid YAML: {}", place(error.mark), error.msg);
  }
  if (starts.size() > 1 && starts[1].pos == starts[0].pos) {
    fail_input("{}: not valid YAML: a document cannot begin so; write e.g. {}", place(starts[0]), example);
  }
  if (starts.size() > 1) fail_input("{}: a second document begins here; a {} holds one", place(starts[1]), kind);
  if (document.IsNull()) fail_input("{}: the file is empty; write e.g. {}", file_name, example);
  return document;
}

}  // namespace millrace::job
