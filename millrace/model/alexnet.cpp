// AlexNet, the one-tower form (Krizhevsky 2014, "One weird trick").
#include "millrace/model/families.h"

namespace millrace::model {

using graph::ValueId;
using graph::Window;

ValueId alexnet(graph::Builder& b, const job::Model& model, const AlexnetShape& shape) {
  const int w = shape.width;
  auto conv_relu = [&](const std::string& name, ValueId x, int channels, Window window) {
    b.begin_layer();
    const graph::Init init = torch_default(b.shape(x)[1] * window.kernel_h * window.kernel_w);
    return b.relu(name + ".relu", b.conv(name, x, {.out_channels = channels, .window = window}, init, init));
  };
  auto linear = [&](const std::string& name, ValueId x, int features) {
    const graph::Init init = torch_default(b.shape(x)[1]);
    return b.linear(name, x, {.out_features = features}, init, init);
  };
  const Window pool = Window::square(3, 2);

  ValueId x =
      conv_relu("features.0", b.images(), w, shape.image_stem ? Window::square(11, 4, 2) : Window::square(3, 1, 1));
  x = b.max_pool("features.2", x, pool);
  x = conv_relu("features.3", x, 3 * w, Window::square(5, 1, 2));
  x = b.max_pool("features.5", x, pool);
  x = conv_relu("features.6", x, 6 * w, Window::square(3, 1, 1));
  x = conv_relu("features.8", x, 4 * w, Window::square(3, 1, 1));
  x = conv_relu("features.10", x, 4 * w, Window::square(3, 1, 1));
  x = b.max_pool("features.12", x, pool);
  x = b.adaptive_avg_pool("avgpool", x, shape.pooled, shape.pooled);
  x = b.flatten("flatten", x);
  b.begin_layer();
  x = b.dropout("classifier.0", x, dropout_of(model, 0.5));
  x = b.relu("classifier.2", linear("classifier.1", x, shape.hidden));
  b.begin_layer();
  x = b.dropout("classifier.3", x, dropout_of(model, 0.5));
  x = b.relu("classifier.5", linear("classifier.4", x, shape.hidden));
  b.begin_head();
  return linear("classifier.6", x, model.classes);
}

}  // namespace millrace::model
