#include "dtopp/data/images/image_layout_json.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/base/json_fields.h"

namespace dtopp::data {
namespace {

constexpr char kPixels[] = "pixels", kLatents[] = "latents";
// Limits that keep products of sizes from overflowing.
constexpr int64_t kLargestSide = int64_t{1} << 16;
constexpr int64_t kLargestText = int64_t{1} << 24;

ImageShape read_shape(const JsonFields& fields) {
  const std::vector<double> sizes = fields.numbers("shape");
  if (sizes.size() != 3) fields.fail("shape", "must be [channels, height, width]");
  for (const double size : sizes)
    if (!(size >= 1 && size <= static_cast<double>(kLargestSide)) || size != static_cast<int64_t>(size))
      fields.fail("shape", "a size is not a whole number from 1 to " + std::to_string(kLargestSide));
  return {static_cast<int64_t>(sizes[0]), static_cast<int64_t>(sizes[1]), static_cast<int64_t>(sizes[2])};
}

// Reads one number, or one per channel.
std::vector<double> of_channels(const JsonFields& fields, const std::string& key, int64_t channels) {
  std::vector<double> numbers = fields.numbers(key);
  if (numbers.size() != 1 && numbers.size() != static_cast<size_t>(channels))
    fields.fail(key, "must be one number or one per channel");
  return numbers;
}

}  // namespace

std::string format_image_layout(const ImageLayout& layout) {
  const nlohmann::ordered_json json = {
      {"kind", layout.is_latent ? kLatents : kPixels},
      {"shape", {layout.shape.channels, layout.shape.height, layout.shape.width}},
      {"classes", layout.classes},
      {"text_size", layout.text_size},
      {"text_length", layout.text_length},
      {"scale", layout.scale},
      {"shift", layout.shift}};
  return dump_json(json, 2) + "\n";
}

ImageLayout parse_image_layout(const std::string& text, const std::string& what) {
  const JsonFields fields(text, what);
  ImageLayout layout;
  const std::string kind = fields.text("kind");
  if (kind != kPixels && kind != kLatents) fields.fail("kind", "\"" + kind + "\" is not pixels or latents");
  layout.is_latent = kind == kLatents;
  layout.shape = read_shape(fields);
  layout.classes = fields.texts("classes");
  layout.text_size = fields.integer("text_size", 0, kLargestText);
  layout.text_length = fields.integer("text_length", 0, kLargestText);
  layout.scale = of_channels(fields, "scale", layout.shape.channels);
  layout.shift = of_channels(fields, "shift", layout.shape.channels);
  for (const double scale : layout.scale)
    if (scale == 0) fields.fail("scale", "must not be 0");
  return layout;
}

}  // namespace dtopp::data
