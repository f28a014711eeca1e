// Flatten: from the blocked layout to rows of N x (C H W), and back.
#include <utility>

#include "millrace/backend/cpu/kernels.h"

namespace millrace::backend::cpu {

Kernel prepare_flatten(std::shared_ptr<OneDnn> dnn, const NodeView& view, const Layouts& layouts) {
  const bool forward = view.node.pass != graph::Pass::InputGrad;
  const Shape& image = forward ? view.read(0) : view.write(0);
  const Desc& stored = forward ? layouts.reads[0] : layouts.writes[0];
  const Desc plain = plain_desc(image);
  return forward ? make_reorder(std::move(dnn), stored, plain) : make_reorder(std::move(dnn), plain, stored);
}

}  // namespace millrace::backend::cpu
