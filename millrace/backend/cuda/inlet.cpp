#include "millrace/backend/cuda/inlet.h"

#include <algorithm>

namespace millrace::backend::cuda {

Inlet::~Inlet() {
  for (const Piece& piece : pieces_) {
    for (const Turn& turn : piece.turns) {
      for (cudaEvent_t event : {turn.asked, turn.there, turn.read}) cudaEventDestroy(event);
    }
  }
  if (stream_) cudaStreamDestroy(stream_);
}

void Inlet::bring(const void* host, size_t bytes, void* landing) {
  if (!stream_) MILLRACE_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  auto piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& it) { return it.landing == landing; });
  if (piece == pieces_.end()) {
    Piece added;
    added.landing = landing;
    for (Turn& turn : added.turns) {
      for (cudaEvent_t* event : {&turn.asked, &turn.there, &turn.read}) MILLRACE_CUDA(cudaEventCreate(event));
    }
    piece = pieces_.insert(pieces_.end(), added);
  }
  if (!piece->host) {  // otherwise it was never used, and what comes now takes its place
    MILLRACE_CUDA(cudaStreamWaitEvent(stream_, piece->turns[piece->turn].read, 0));
    piece->turn = (piece->turn + 1) % piece->turns.size();
  }
  Turn& turn = piece->turns[piece->turn];
  count_late(turn);
  MILLRACE_CUDA(cudaMemcpyAsync(landing, host, bytes, cudaMemcpyHostToDevice, stream_));
  MILLRACE_CUDA(cudaEventRecord(turn.there, stream_));
  piece->host = host;
  piece->bytes = bytes;
}

Inlet::Piece* Inlet::find(const void* host, size_t bytes) {
  for (Piece& piece : pieces_) {
    if (piece.host == host && piece.bytes >= bytes) return &piece;
  }
  return nullptr;
}

void Inlet::ask(Piece& piece) {
  Turn& turn = piece.turns[piece.turn];
  MILLRACE_CUDA(cudaEventRecord(turn.asked, tasks_.stream));
  MILLRACE_CUDA(cudaStreamWaitEvent(tasks_.stream, turn.there, 0));
  turn.was_asked = true;
}

void Inlet::give_up(Piece& piece) {
  MILLRACE_CUDA(cudaEventRecord(piece.turns[piece.turn].read, tasks_.stream));
  piece.host = nullptr;
}

void Inlet::await() {
  if (stream_) MILLRACE_CUDA(cudaStreamSynchronize(stream_));
}

void Inlet::forget(std::span<const std::byte> host) {
  for (Piece& piece : pieces_) {
    const auto* at = static_cast<const std::byte*>(piece.host);
    if (at && at >= host.data() && at < host.data() + host.size()) piece.host = nullptr;
  }
}

void Inlet::count_late(Turn& turn) {
  if (!turn.was_asked) return;
  turn.was_asked = false;
  float ms = 0;
  if (cudaEventElapsedTime(&ms, turn.asked, turn.there) != cudaSuccess) {
    cudaGetLastError();  // not there yet: the host is further ahead than there are turns
    return;
  }
  if (ms > 0) late_s_ += static_cast<double>(ms) * 1e-3;
}

}  // namespace millrace::backend::cuda
