// Plain, gzip and zstd files. Reading in small pieces gives the bytes of reading in large ones.
#include "dtopp/data/text/byte_source.h"

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

// The bytes up to an error or the limit, and whether an error ended them.
static std::string read_all(const std::filesystem::path& path, size_t piece, size_t limit, bool& refused) {
  std::string all;
  refused = !fuzz::accepts([&] {
    const auto source = data::open_bytes(path);
    std::string buffer(piece, '\0');
    while (all.size() < limit) {
      const size_t count = source->read(buffer);
      fuzz::require(count <= piece, "a piece fits its buffer");
      all.append(buffer, 0, count);
      if (count < piece) break;
    }
    all.resize(std::min(all.size(), limit));
  });
  return all;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  constexpr std::array kNames = {"text", "text.gz", "text.zst"};
  const char* const name = kNames[input.choice(kNames.size())];
  const size_t piece = 1 + input.choice(100);
  const auto path = fuzz::write_scratch(name, input.rest());
  constexpr size_t kLimit = size_t{1} << 20;
  bool whole_refused = false, pieces_refused = false;
  const std::string whole = read_all(path, size_t{1} << 16, kLimit, whole_refused);
  const std::string pieces = read_all(path, piece, std::min<size_t>(kLimit, 4096), pieces_refused);
  const size_t both = std::min(whole.size(), pieces.size());
  fuzz::require(whole.compare(0, both, pieces, 0, both) == 0, "the size of the pieces changes no byte");
  if (!whole_refused && !pieces_refused)
    fuzz::require(pieces.size() == std::min<size_t>(whole.size(), 4096),
                  "the size of the pieces changes no length");
  return 0;
}
