// Workers that are threads of one process. A message is one copy, made by whichever side comes second; a sum is taken
// in place, each worker adding its share of the elements for all.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "millrace/backend/memory.h"
#include "millrace/comm/endpoint.h"

namespace millrace::comm {

class LocalHub {
 public:
  explicit LocalHub(Topology topology);

  // The hub must outlive its endpoints; each worker makes one, with the memory its messages lie in.
  std::unique_ptr<Endpoint> connect(int worker, backend::Memory& memory);
  void abort() { aborted_.store(true); }

 private:
  friend class LocalEndpoint;

  struct alignas(64) Place {
    std::atomic<uint8_t> sides{0};  // which have come
    void* to = nullptr;
    const void* from = nullptr;
    std::atomic<uint32_t> completions{0};
  };
  struct alignas(64) Sum {
    std::vector<std::span<float>> data;  // per member
    std::atomic<uint32_t> arrived{0}, finished{0};
  };

  const Topology topology_;
  std::vector<Place> places_;
  std::vector<std::vector<std::unique_ptr<Sum>>> sums_;  // per group and bucket
  std::atomic<bool> aborted_{false};
};

}  // namespace millrace::comm
