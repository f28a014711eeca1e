#include "millrace/state/checksum.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace millrace::state {

struct Checksum::Sum {
  XXH3_state_t state;  // new aligns it as it asks for
};

void Checksum::Free::operator()(Sum* sum) const { delete sum; }

Checksum::Checksum() : sum_(new Sum) {
  XXH3_INITSTATE(&sum_->state);
  XXH3_64bits_reset(&sum_->state);
}

void Checksum::add(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(&sum_->state, data, bytes);  // an empty vector may have no memory at all
}

std::string Checksum::digits() const { return fmt::format("{:016x}", XXH3_64bits_digest(&sum_->state)); }

std::string Checksum::of(std::string_view text) {
  Checksum checksum;
  checksum.add(text.data(), text.size());
  return checksum.digits();
}

}  // namespace millrace::state
