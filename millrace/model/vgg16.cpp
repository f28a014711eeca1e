// VGG16, configuration D (Simonyan and Zisserman 2014), with or without batch norm.
#include <fmt/format.h>

#include "millrace/model/families.h"

namespace millrace::model {

using graph::ValueId;
using graph::Window;

ValueId vgg16(graph::Builder& b, const job::Model& model, bool batch_norm) {
  constexpr int kPool = 0;
  const std::vector<int> layers{64,    64,  kPool, 128, 128,   kPool, 256, 256, 256,
                                kPool, 512, 512,   512, kPool, 512,   512, 512, kPool};
  ValueId x = b.images();
  int index = 0;  // torchvision numbers every module of the sequence
  auto next = [&] { return fmt::format("features.{}", index++); };
  for (int channels : layers) {
    if (channels == kPool) {
      x = b.max_pool(next(), x, Window::square(2, 2));
      continue;
    }
    b.begin_layer();
    x = b.conv(next(), x, {.out_channels = channels, .window = Window::square(3, 1, 1)},
               kaiming_normal_fan_out(channels, 3));
    if (batch_norm) x = b.batch_norm(next(), x);
    x = b.relu(next(), x);
  }
  const graph::Init init{graph::Init::Kind::Normal, 0.01};
  x = b.adaptive_avg_pool("avgpool", x, 7, 7);
  x = b.flatten("flatten", x);
  b.begin_layer();
  x = b.relu("classifier.1", b.linear("classifier.0", x, {.out_features = 4096}, init));
  b.begin_layer();
  x = b.dropout("classifier.2", x, dropout_of(model, 0.5));
  x = b.relu("classifier.4", b.linear("classifier.3", x, {.out_features = 4096}, init));
  b.begin_head();
  x = b.dropout("classifier.5", x, dropout_of(model, 0.5));
  return b.linear("classifier.6", x, {.out_features = model.classes}, init);
}

}  // namespace millrace::model
