#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/base/error.h"
#include "millrace/state/safetensors.h"

namespace millrace::state {
namespace {

using nlohmann::json;

// A file under a temporary name beside its place. Removed unless it is put there.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path) : path_(path), temporary_(fmt::format("{}.tmp{}", path, ::getpid())) {
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail("created");
  }
  ~PendingFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* data, size_t bytes) {
    const char* rest = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_, rest, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("written");
      rest += written;
      bytes -= static_cast<size_t>(written);
    }
  }

  // On the disk before it has its name, so that a crash never leaves half a file under it.
  void put_in_place() {
    if (::fsync(descriptor_) != 0) fail("written");
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) fail("written");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("put in place");
    temporary_.clear();
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    const int directory = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;  // the name is in place; only its survival of a power cut is unsure
    ::fsync(directory);
    ::close(directory);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    fail_run("{}: cannot be {}: {}", path_, what, std::strerror(errno));
  }

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

std::string make_header(const std::string& path, const std::map<std::string, Tensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") fail_input("{}: a tensor cannot be named __metadata__", path);
    if (tensor.shape.elements() != static_cast<int64_t>(tensor.data.size())) {
      fail_input("{}: tensor \"{}\" is {} but holds {} values", path, name, tensor.shape.str(), tensor.data.size());
    }
    const uint64_t end = offset + tensor.data.size() * sizeof(float);
    json shape = json::array();
    for (int64_t extent : tensor.shape) shape.push_back(extent);
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail_input("{}: a tensor's name or the metadata is not UTF-8", path);
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned when the file is mapped
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = make_header(path, tensors, metadata);
  const uint64_t header_bytes = header.size();
  PendingFile file(path);
  file.write(&header_bytes, sizeof header_bytes);
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) file.write(tensor.data.data(), tensor.data.size() * sizeof(float));
  file.put_in_place();
}

}  // namespace millrace::state
