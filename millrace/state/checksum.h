// XXH3 with 64 bits: finds what disks, memories and networks do to bytes, at the speed of memory. No protection against
// people.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace millrace::state {

class Checksum {
 public:
  Checksum();
  void add(const void* data, size_t bytes);
  // Of all bytes so far: 16 hexadecimal digits, as `xxhsum -H3` prints them.
  std::string digits() const;

  static std::string of(std::string_view text);

 private:
  struct Sum;
  struct Free {
    void operator()(Sum* sum) const;
  };
  std::unique_ptr<Sum, Free> sum_;
};

}  // namespace millrace::state
