// Reads and writes a checkpoint's images.json: the layout of the prepared images that a model was trained on.
//
// Sampling needs the layout: it holds the names of the classes and the scale and shift that turn a model's
// output into a latent.
#pragma once

#include <string>

#include "dtopp/data/images/image_data.h"

namespace dtopp::data {

// Returns the layout as JSON:
// {"kind": "pixels" | "latents", "shape": [C, H, W], "classes": [...], "text_size": 0,
//  "text_length": 0, "scale": [...], "shift": [...]}
std::string format_image_layout(const ImageLayout& layout);

// Parses images.json. Throws DataError, naming `what` (the file) and the key, if a value is missing, has a
// wrong type or is out of range.
ImageLayout parse_image_layout(const std::string& text, const std::string& what);

}  // namespace dtopp::data
