// The lists post, send and receive exactly the messages that the pipeline needs, each once.
#include <algorithm>

#include "millrace/schedule/messages.h"
#include "millrace/schedule/proof.h"

namespace millrace::schedule {
namespace {

constexpr Kind kMessageKinds[] = {Kind::Post, Kind::Send, Kind::Receive};

size_t index_of(Kind kind) { return static_cast<size_t>(kind) - static_cast<size_t>(Kind::Post); }

Verdict check_stage(const Proof& proof, int w, int i) {
  const Action& action = proof.action(w, i);
  const Edge& edge = proof.pipeline().edges[action.edge];
  const int stage =
      action.kind == Kind::Send ? sending_stage(edge, action.direction) : receiving_stage(edge, action.direction);
  if (action.stage == stage) return {};
  return fault_at(w, i, "is listed for stage {}; this end of the edge is stage {}", action.stage, stage);
}

void note_places(Proof& proof, int w, int i) {
  const Action& action = proof.action(w, i);
  Places& places = proof.places(action.stage, w, action.microbatch);
  const int direction = static_cast<int>(action.direction);
  if (action.kind == Kind::Post && places.first_post[direction] == kNowhere) places.first_post[direction] = i;
  if (action.kind == Kind::Send) places.last_send[direction] = i;
}

Verdict check_present(const Proof& proof, const Message& message, const int (&seen)[3]) {
  for (const Kind kind : kMessageKinds) {
    if (seen[index_of(kind)] != kNowhere) continue;
    Action missing;
    missing.kind = kind;
    missing.direction = message.direction;
    missing.microbatch = message.microbatch;
    missing.edge = message.edge;
    missing.peer = kind == Kind::Send ? message.to : message.from;
    return fault_at(kind == Kind::Send ? message.from : message.to, -1, "{} is missing",
                    to_text(proof.schedule(), missing));
  }
  return {};
}

// What a message carries is there when it leaves, and has come when it is used.
Verdict check_order(Proof& proof, const Message& message, const int (&seen)[3]) {
  const bool activation = message.direction == Direction::Activation;
  const Edge& edge = proof.pipeline().edges[message.edge];
  const int post = seen[index_of(Kind::Post)], send = seen[index_of(Kind::Send)];
  const int receive = seen[index_of(Kind::Receive)];
  const Places& from = proof.places(sending_stage(edge, message.direction), message.from, message.microbatch);
  const Places& to = proof.places(receiving_stage(edge, message.direction), message.to, message.microbatch);
  const int written = activation ? from.forward : from.gradient_ready;
  const int read = activation ? to.forward : to.backward_begin;
  if (send < written) {
    return fault_at(message.from, send, "reads its buffer before action {} ({}) has written it", written,
                    proof.text(message.from, written));
  }
  if (receive < post) return fault_at(message.to, receive, "comes before its POST, action {}", post);
  if (read < receive) {
    return fault_at(message.to, read, "reads its buffer before action {} ({}) has filled it", receive,
                    proof.text(message.to, receive));
  }
  return {};
}

}  // namespace

Verdict check_messages(Proof& proof) {
  const MessageList messages(proof.schedule());
  struct Seen {
    int places[3] = {kNowhere, kNowhere, kNowhere};
  };
  std::vector<Seen> seen(messages.all().size());
  for (int w = 0; w < proof.pipeline().num_workers; ++w) {
    for (int i = 0; i < static_cast<int>(proof.list(w).size()); ++i) {
      const Action& action = proof.action(w, i);
      if (!is_message(action.kind)) continue;
      if (Verdict fault = check_stage(proof, w, i)) return fault;
      const int message = messages.find(action, w);
      if (message < 0)
        return fault_at(w, i, "the pipeline needs no such message between workers {} and {}", w, action.peer);
      int& place = seen[message].places[index_of(action.kind)];
      if (place != kNowhere) return fault_at(w, i, "is done already, by action {}", place);
      place = i;
      note_places(proof, w, i);
    }
  }
  for (size_t m = 0; m < seen.size(); ++m) {
    if (Verdict fault = check_present(proof, messages.all()[m], seen[m].places)) return fault;
  }
  for (size_t m = 0; m < seen.size(); ++m) {
    if (Verdict fault = check_order(proof, messages.all()[m], seen[m].places)) return fault;
  }
  return {};
}

}  // namespace millrace::schedule
