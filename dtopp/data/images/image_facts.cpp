#include "dtopp/data/images/image_facts.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

namespace dtopp::data {
namespace {

using nlohmann::ordered_json;

// Limits that keep products of sizes from overflowing.
constexpr int64_t kMaxShapeSide = int64_t{1} << 16;
constexpr int64_t kMaxText = int64_t{1} << 24;

// The value that the member names. `names` lists all names in an error.
template <class Enum>
Enum named(const JsonFields& object, const std::string& key, const char* names) {
  const std::string name = object.text(key);
  const auto value = enum_named<Enum>(name);
  if (!value) object.fail(key, "\"", name, "\" is not ", names);
  return *value;
}

FloatType float_type(const JsonFields& object) {
  return named<FloatType>(object, "dtype", "F32, F16 or BF16");
}

ImageJob read_job(const JsonFields& about) {
  ImageJob job{about.integer("size", 0, kMaxShapeSide), about.integer("channels", 1, kMaxShapeSide), {}, {}};
  if (about.has("scale")) job.scale = about.numbers("scale");
  if (about.has("shift")) job.shift = about.numbers("shift");
  return job;
}

}  // namespace

FolderKind image_folder_kind() {
  FolderKind kind{kImageDataFormat, kImageRecordFormat, {}, {}, "--"};
  for (const char* name :
       {"images", "bytes", "offsets", "latents", "latents_flip", "labels", "text", "text_offsets"})
    kind.unlisted.push_back(std::string(kStreamPrefix) + name);
  return kind;
}

ordered_json to_json(const ImageJob& job) {
  ordered_json settings = {{"size", job.size}, {"channels", job.channels}};
  if (!job.scale.empty()) settings["scale"] = job.scale;
  if (!job.shift.empty()) settings["shift"] = job.shift;
  return settings;
}

ordered_json to_json(const ImageFacts& facts) {
  ordered_json about = {{"kind", enum_name(facts.kind)},
                        {"images", facts.images},
                        {"shape", {facts.shape.channels, facts.shape.height, facts.shape.width}},
                        {"classes", facts.classes}};
  if (facts.kind == ImageKind::kLatents)
    about["latents"] = {{"dtype", enum_name(facts.latent_type)}, {"flipped", facts.has_flipped ? 1 : 0}};
  if (facts.text_size > 0)
    about["text"] = {
        {"dtype", enum_name(facts.text_type)}, {"size", facts.text_size}, {"longest", facts.text_length}};
  ordered_json skipped = ordered_json::array();
  for (const SkippedImage& image : facts.skipped)
    skipped.push_back({{"name", image.name}, {"cause", image.cause}});
  about["skipped"] = std::move(skipped);
  return about;
}

ImageFacts read_image_facts(const Manifest& manifest, const fs::path& path) {
  const JsonFields about(manifest.about, path.string());
  ImageFacts facts;
  facts.job = read_job(about.object("job"));
  facts.kind = named<ImageKind>(about, "kind", "pixels, encoded or latents");
  facts.images = about.count("images");
  const std::vector<double> shape = about.numbers("shape");
  const auto is_side = [](double side) { return side >= 0 && side <= kMaxShapeSide; };
  if (shape.size() != 3 || !std::ranges::all_of(shape, is_side))
    about.fail("shape", "must be channels, height and width");
  facts.shape = {static_cast<int64_t>(shape[0]), static_cast<int64_t>(shape[1]),
                 static_cast<int64_t>(shape[2])};
  facts.classes = about.texts("classes");
  if (facts.kind == ImageKind::kLatents) {
    const JsonFields latents = about.object("latents");
    facts.latent_type = float_type(latents);
    facts.has_flipped = latents.integer("flipped", 0, 1) != 0;
  }
  if (about.has("text")) {
    const JsonFields text = about.object("text");
    facts.text_type = float_type(text);
    facts.text_size = text.integer("size", 1, kMaxText);
    facts.text_length = text.integer("longest", 0, kMaxText);
  }
  for (const JsonFields& image : about.objects("skipped"))
    facts.skipped.push_back({image.text("name"), image.text("cause")});
  return facts;
}

}  // namespace dtopp::data
