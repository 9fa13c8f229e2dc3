// Reads how large a picture is without decoding it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace dtopp::data {

// Returns the pixels that the header of a JPEG, PNG or WebP file declares. `beginning` may lack the rest of
// the file. Returns 0 if no picture begins so, and nullopt if the header of a JPEG lies further back.
std::optional<uint64_t> declared_pixels(std::span<const std::byte> beginning);

}  // namespace dtopp::data
