#include "millrace/data/text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "millrace/base/error.h"

namespace millrace::data {

namespace {

constexpr std::string_view kContinues = "##";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// FNV-1a goes on byte by byte but leaves its low bits poor; this spreads them before they choose a slot.
uint64_t spread(uint64_t hash) {
  hash = (hash ^ (hash >> 32)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

uint32_t tag_of(uint64_t spread_hash) { return static_cast<uint32_t>(spread_hash >> 32); }

}  // namespace

uint64_t Vocabulary::hash_on(uint64_t hash, std::string_view bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

uint64_t Vocabulary::begin_hash(bool continues) {
  constexpr uint64_t kStart = 0xCBF29CE484222325u;
  return continues ? hash_on(kStart, kContinues) : kStart;
}

Vocabulary::Vocabulary(std::string text, std::string_view name) : text_(std::move(text)) {
  size_t at = text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  while (at < text_.size()) {
    const size_t end = std::min(text_.find('\n', at), text_.size());
    const bool carriage_return = end > at && text_[end - 1] == '\r';
    lines_.push_back({at, end - at - (carriage_return ? 1 : 0)});
    longest_token_bytes_ = std::max(longest_token_bytes_, lines_.back().bytes);
    at = end + 1;
  }
  if (lines_.empty()) fail_input("{}: an empty vocabulary; it has one token per line", name);
  if (lines_.size() > std::numeric_limits<int32_t>::max() / 4) {
    fail_input("{}: {} lines are too many for a vocabulary; it has one token per line", name, lines_.size());
  }
  slots_.resize(std::bit_ceil(2 * lines_.size()));
  for (int32_t id = 0; id < size(); ++id) insert(id);
}

void Vocabulary::insert(int32_t id) {
  const uint64_t hash = spread(hash_on(begin_hash(false), token(id)));
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot].id >= 0 && token(slots_[slot].id) != token(id)) slot = (slot + 1) & mask;
  slots_[slot] = {tag_of(hash), id};
}

int32_t Vocabulary::find(std::string_view piece, bool continues, uint64_t hash) const {
  hash = spread(hash);
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot].id >= 0; slot = (slot + 1) & mask) {
    if (slots_[slot].tag != tag_of(hash)) continue;
    std::string_view found = token(slots_[slot].id);
    if (continues) {
      if (!found.starts_with(kContinues)) continue;
      found.remove_prefix(kContinues.size());
    }
    if (found == piece) return slots_[slot].id;
  }
  return -1;
}

}  // namespace millrace::data
