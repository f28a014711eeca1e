// What workers tell each other, from host to host, so that their devices can exchange what lies in their memory.
#pragma once

#include <cstdint>
#include <span>

#include "millrace/backend/fabric.h"

namespace millrace::comm {

struct Notice {
  enum class Kind : int32_t {
    Ready,  // from the receiver: the message has somewhere to go
    Going,  // from the sender: it is the next one on the lane between the two
  };
  Kind kind = Kind::Ready;
  int32_t tag = 0;
  int64_t bytes = 0;  // that the one who tells expects
};

class Sideband {
 public:
  virtual ~Sideband() = default;

  // At the start, on all members in one order: the first one's, then everyone's. `workers` has this one.
  virtual void share(backend::Fabric::Id& id, std::span<const int> workers) = 0;

  // Then, by one thread at a time. Neither waits; between two workers notices come in the order in which they were
  // told.
  virtual void tell(int worker, const Notice& notice) = 0;
  virtual bool next(Notice& notice) = 0;  // false: none has come
};

}  // namespace millrace::comm
