#include "millrace/job/small_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "millrace/base/error.h"

namespace millrace::job {

constexpr size_t kLargestFileBytes = 1 << 20;

std::string read_small_file(const std::string& path, const std::string& kind) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail_input("{}: no such {}", path, kind);
  if (std::filesystem::is_directory(status)) fail_input("{}: is a directory; name the {} in it", path, kind);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  std::string text(kLargestFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail_run("{}: cannot be read: {}", path, std::strerror(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLargestFileBytes) fail_input("{}: larger than 1 MiB; that is no {}", path, kind);
  return text;
}

}  // namespace millrace::job
