// images.json of a checkpoint: the layout of the prepared images a model was trained on, which says what its
// classes are called and how what it makes becomes a picture or a latent again.
#pragma once

#include <string>

#include "dtopp/data/images/image_data.h"

namespace dtopp {

// {"kind": "pixels" | "latents", "shape": [C, H, W], "classes": [...], "text_size": 0,
//  "text_length": 0, "scale": [...], "shift": [...]}
std::string format_image_layout(const ImageLayout& layout);

// DataError naming `what` (the file) and the member that is missing, of a wrong type or out of range.
ImageLayout parse_image_layout(const std::string& text, const std::string& what);

}  // namespace dtopp
