#include "millrace/data/text/read_text.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "millrace/base/error.h"

namespace millrace::data {

std::string read_text(const std::string& path, const std::string& kind) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail_input("{}: no such file; name a {}", path, kind);
  if (!std::filesystem::is_regular_file(status)) fail_input("{}: not a file; name a {}", path, kind);
  const auto file_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  std::string text(file_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) {
    fail_run("{}: only {} of {} bytes can be read; is it being written?", path, file.gcount(), text.size());
  }
  return text;
}

}  // namespace millrace::data
