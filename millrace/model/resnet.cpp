// Residual networks (He et al. 2015), version 1.5: the stride of a bottleneck stands on its 3x3 convolution.
#include <fmt/format.h>

#include "millrace/model/families.h"

namespace millrace::model {
namespace {

using graph::ValueId;
using graph::Window;

ValueId conv_norm(graph::Builder& b, const std::string& conv, const std::string& norm, ValueId x, int channels,
                  Window window) {
  const graph::Init init = kaiming_normal_fan_out(channels, window.kernel_h);
  x = b.conv(conv, x, {.out_channels = channels, .window = window, .bias = false}, init);
  return b.batch_norm(norm, x);
}

ValueId block(graph::Builder& b, const std::string& name, ValueId in, int width, int stride, bool bottleneck) {
  const int out_channels = bottleneck ? 4 * width : width;
  auto step = [&](int i, ValueId x, int channels, Window window) {
    const std::string number = std::to_string(i);
    return conv_norm(b, name + ".conv" + number, name + ".bn" + number, x, channels, window);
  };
  ValueId shortcut = in;
  if (stride != 1 || b.shape(in)[1] != out_channels) {
    shortcut =
        conv_norm(b, name + ".downsample.0", name + ".downsample.1", in, out_channels, Window::square(1, stride));
  }
  ValueId x = in;
  if (bottleneck) {
    x = b.relu(name + ".relu1", step(1, x, width, Window::square(1)));
    x = b.relu(name + ".relu2", step(2, x, width, Window::square(3, stride, 1)));
    x = step(3, x, out_channels, Window::square(1));
  } else {
    x = b.relu(name + ".relu1", step(1, x, width, Window::square(3, stride, 1)));
    x = step(2, x, width, Window::square(3, 1, 1));
  }
  return b.relu(name + ".relu", b.add(name + ".add", x, shortcut));
}

}  // namespace

ValueId resnet(graph::Builder& b, const job::Model& model, const ResnetShape& shape) {
  const Window stem = shape.image_stem ? Window::square(7, 2, 3) : Window::square(3, 1, 1);
  ValueId x = b.relu("relu", conv_norm(b, "conv1", "bn1", b.images(), shape.width, stem));
  if (shape.image_stem) x = b.max_pool("maxpool", x, Window::square(3, 2, 1));
  int width = shape.width;
  for (size_t group = 0; group < shape.blocks.size(); ++group, width *= 2) {
    for (int i = 0; i < shape.blocks[group]; ++i) {
      const std::string name = fmt::format("layer{}.{}", group + 1, i);
      b.begin_layer();
      x = block(b, name, x, width, group > 0 && i == 0 ? 2 : 1, shape.bottleneck);
    }
  }
  x = b.flatten("flatten", b.adaptive_avg_pool("avgpool", x, 1, 1));
  const graph::Init init = torch_default(b.shape(x)[1]);
  b.begin_head();
  return b.linear("fc", x, {.out_features = model.classes}, init, init);
}

}  // namespace millrace::model
