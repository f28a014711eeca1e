// Many independent pieces of work on a few threads: indexing parts, listing folders, converting.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::data {

inline int threads_for(int asked, int64_t pieces) {
  const int wanted = asked > 0 ? asked : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  return static_cast<int>(std::clamp<int64_t>(pieces, 1, wanted));
}

// work(piece) for every piece of [0, pieces), each taken by the next free thread. After a failure no further piece
// is begun, and the first failure is rethrown once all threads are done.
template <typename Work>
void for_each_piece(int64_t pieces, int threads, const Work& work) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto take_pieces = [&] {
    try {
      for (int64_t piece = next++; piece < pieces; piece = next++) work(piece);
    } catch (...) {
      next = pieces;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads_for(threads, pieces); ++i) helpers.emplace_back(take_pieces);
  take_pieces();
  helpers.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

}  // namespace millrace::data
