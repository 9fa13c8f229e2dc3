#include "dtopp/data/image_preparation/sample_agreement.h"

#include <algorithm>

#include "dtopp/base/errors.h"

namespace dtopp {
namespace {

std::string describe(const ImageShape& shape) {
  return std::to_string(shape.channels) + " x " + std::to_string(shape.height) + " x " +
         std::to_string(shape.width);
}

std::string one_kind(bool has, const std::string& what) {
  return (has ? "has a " : "has no ") + what + ", unlike the first sample";
}

void require_scale(const ImageJob& job, const PreparedImage& image) {
  for (const std::vector<double>* numbers : {&job.scale, &job.shift}) {
    if (numbers->empty()) continue;
    if (image.kind != ImageKind::kLatents)
      throw UsageError(image.name + ": is a picture; --scale and --shift are for latents");
    if (numbers->size() != 1 && numbers->size() != static_cast<size_t>(image.shape.channels))
      throw UsageError("--scale and --shift: one number, or one for each of the " +
                       std::to_string(image.shape.channels) + " channels");
  }
}

std::string shape_disagreement(const ImageFacts& facts, const PreparedImage& image) {
  const bool latent = image.kind == ImageKind::kLatents;
  if (latent != (facts.kind == ImageKind::kLatents))
    return std::string("is a ") + (latent ? "latent" : "picture") + ", unlike the first sample";
  if (image.shape != facts.shape)
    return "is " + describe(image.shape) + ", the first sample " + describe(facts.shape) +
           (latent ? "" : " (--size N brings pictures to one size)");
  if (latent && image.latent_type != facts.latent_type)
    return "is " + name_of(image.latent_type) + ", the first sample " + name_of(facts.latent_type);
  return "";
}

}  // namespace

std::string disagreement(const ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image) {
  const bool labelled = image.label >= 0;
  if (!plan.by_number && labelled != !plan.labels.empty()) return "lies in no folder, unlike other samples";
  if (facts.images == 0) {
    require_scale(facts.job, image);
    return "";
  }
  if (std::string fault = shape_disagreement(facts, image); !fault.empty()) return fault;
  if (image.flipped.empty() == facts.has_flipped) return one_kind(!facts.has_flipped, "flipped latent");
  if (labelled != !facts.classes.empty())
    return one_kind(labelled, "class") + " (.cls, or \"label\" in .json)";
  if ((image.text_size > 0) != (facts.text_size > 0))
    return one_kind(image.text_size > 0, "text of embeddings (.npy)");
  if (image.text_size != facts.text_size || (image.text_size > 0 && image.text_type != facts.text_type))
    return "has text of " + name_of(image.text_type) + " x " + std::to_string(image.text_size) +
           ", the first sample of " + name_of(facts.text_type) + " x " + std::to_string(facts.text_size);
  return "";
}

void agree(ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image) {
  if (facts.images == 0) {
    facts.kind = image.kind;
    facts.shape = image.shape;
    facts.latent_type = image.latent_type;
    facts.has_flipped = !image.flipped.empty();
    facts.text_size = image.text_size;
    facts.text_type = image.text_type;
    for (const auto& [folder, unused] : plan.labels) facts.classes.push_back(folder);  // in order of labels
  }
  while (plan.by_number && image.label >= static_cast<int64_t>(facts.classes.size()))
    facts.classes.push_back(std::to_string(facts.classes.size()));
  facts.text_length = std::max(facts.text_length, image.text_length);
}

}  // namespace dtopp
