// The header of a safetensors file. Tensors lie inside the file, one after another; a file with a written
// header is read back with the same tensors.
#include "dtopp/base/safetensors.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static bool equal(const TensorPlace& a, const TensorPlace& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.size == b.size;
}

// The mapped file and the one that is read on demand hold the same tensors.
static void require_same_file(const std::vector<TensorPlace>& places, std::span<const std::byte> bytes) {
  const auto path = fuzz::write_scratch("file", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const SafetensorsFile mapped(path);
  const SafetensorsReader reader(path);
  fuzz::require(mapped.tensors().size() == places.size(), "the mapped file has all tensors");
  for (const TensorPlace& place : places) {
    const TensorView* view = mapped.find(place.name);
    fuzz::require(view && std::ranges::equal(view->bytes, bytes.subspan(place.begin, place.size)),
                  "the map has its bytes");
    const TensorPlace* found = reader.find(place.name);
    std::vector<std::byte> read(place.size);
    if (found) reader.read(*found, 0, read);
    fuzz::require(found && std::ranges::equal(read, view->bytes), "the reader has its bytes");
  }
  fuzz::require((mapped.find("") == nullptr) == (reader.find("") == nullptr), "both lack the same tensors");
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  std::vector<TensorPlace> places;
  if (!fuzz::accepts([&] { places = parse_safetensors(file, size, "file"); })) return 0;
  uint64_t end = places.empty() ? size : places.front().begin;
  std::vector<TensorSource> sources;
  for (const TensorPlace& place : places) {
    fuzz::require(place.begin == end && place.size <= size - end,
                  "tensors lie one after another in the file");
    end += place.size;
    sources.emplace_back(place.name, place.dtype, place.shape, file.subspan(place.begin, place.size));
  }
  fuzz::require(end == size, "tensors reach to the end of the file");
  require_same_file(places, file);

  std::string head;
  const uint64_t head_bytes = size + 2048 + 128 * places.size();
  if (!fuzz::accepts([&] { head = safetensors_head("file", sources, {}, head_bytes); })) return 0;
  const uint64_t written = head.size() + size - (places.empty() ? size : places.front().begin);
  const auto again = parse_safetensors(std::as_bytes(std::span(head)), written, "file");
  fuzz::require(std::equal(places.begin(), places.end(), again.begin(), again.end(), equal),
                "a written header has the same tensors");
  return 0;
}
