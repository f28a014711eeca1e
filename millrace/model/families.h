// One function per family: from the features to the logits.
#pragma once

#include "millrace/graph/builder.h"
#include "millrace/job/job.h"

namespace millrace::model {

struct AlexnetShape {
  int width;        // channels of the first convolution; the others follow
  int pooled;       // height and width before the classifier
  int hidden;       // features of the classifier's layers
  bool image_stem;  // 11x11 stride 4; otherwise 3x3 for small images
};
graph::ValueId alexnet(graph::Builder& builder, const job::Model& model, const AlexnetShape& shape);
graph::ValueId vgg16(graph::Builder& builder, const job::Model& model, bool batch_norm);

struct ResnetShape {
  std::vector<int> blocks;  // residual blocks per layer group
  int width;                // channels of the first group; each later group doubles it
  bool bottleneck;          // 1x1, 3x3, 1x1 with four times the channels out; otherwise two 3x3
  bool image_stem;          // 7x7 stride 2 and a max-pool; otherwise one 3x3 for small images
};
graph::ValueId resnet(graph::Builder& builder, const job::Model& model, const ResnetShape& shape);

struct TransformerShape {
  int width, layers, heads, mlp;
};
// Vision transformer (Dosovitskiy et al. 2020) and BERT (Devlin et al. 2018) with a head for classes or spans, layer by
// layer as Hugging Face's ViTForImageClassification, BertForSequenceClassification and BertForQuestionAnswering name
// them; queries, keys and values are one layer, "qkv".
graph::ValueId vit(graph::Builder& builder, const job::Model& model, const TransformerShape& usual);
graph::ValueId bert(graph::Builder& builder, const job::Model& model, const TransformerShape& usual);
// GPT-2 (Radford et al. 2019): what token comes after each, by the table that tokens are read with; layer by layer as
// GPT2LMHeadModel names them.
graph::ValueId gpt2(graph::Builder& builder, const job::Model& model, const TransformerShape& usual);

// What the model's name says, where the job does not say otherwise. Refuses heads that do not divide the width.
TransformerShape shape_of(const job::Model& model, const TransformerShape& usual);
double dropout_of(const job::Model& model, double usual);
// Refuses more tokens than there are learned places for.
void require_places(const job::Model& model, int places);

// A linear classifier over the mean of a text's embeddings (Joulin et al., "Bag of tricks", 2016).
graph::ValueId bag_of_tokens(graph::Builder& builder, const job::Model& model);

// Initialisations with torch's names.
graph::Init kaiming_normal_fan_out(int out_channels, int kernel);
graph::Init torch_default(int64_t fan_in);

}  // namespace millrace::model
