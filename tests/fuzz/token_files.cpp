// Token ids: Megatron's .idx beside a .bin file of any size, and .npy files with and without a header.
#include <numeric>

#include <unistd.h>

#include "dtopp/data/text/token_file.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void read_ids(const data::TokenArray& tokens, uint64_t file_bytes) {
  fuzz::require(tokens.size() <= file_bytes, "an id has at least one byte");
  Hasher ids;
  const int64_t largest = tokens.scan(ids);
  std::vector<int64_t> some(std::min<uint64_t>(tokens.size(), 100));
  tokens.read(tokens.size() - some.size(), some);
  for (const int64_t id : some) fuzz::require(id >= 0 && id <= largest, "ids are at most the largest");
}

// An index of documents whose lengths are the input's bytes.
static void write_and_read(const std::string& bytes, data::TokenType type) {
  std::vector<int32_t> lengths(bytes.begin(), bytes.end());
  for (int32_t& length : lengths) length &= 0xFF;
  const auto total = static_cast<uint64_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  const auto text = std::as_bytes(std::span(lengths));
  const MappedFile file(
      fuzz::write_scratch("lengths", {reinterpret_cast<const char*>(text.data()), text.size()}));
  const auto bin = fuzz::write_scratch("tokens.bin", "");
  fuzz::require(::truncate(bin.c_str(), static_cast<off_t>(total * data::size_of(type))) == 0,
                "a file can grow");
  data::write_megatron_index(fuzz::scratch() / "written.idx", type, file);
  const data::TokenPair pair = data::open_megatron(bin, fuzz::scratch() / "written.idx");
  fuzz::require(pair.tokens.size() == total && pair.documents == lengths.size(),
                "a written index is read back");
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t kind = input.choice(5);
  if (kind == 3) {
    const auto type = input.choice(2) == 0 ? data::TokenType::kUint16 : data::TokenType::kInt32;
    write_and_read(input.rest(), type);
  } else if (kind == 4) {
    const uint16_t offset = input.number(), count = input.number();
    const auto path = fuzz::write_scratch("ids", input.rest());
    fuzz::accepts([&] {
      read_ids(data::TokenArray(open_regular(path), offset, data::TokenType::kUint32, count), size);
    });
  } else if (kind == 0) {
    const uint16_t bin_bytes = input.number();
    const auto bin = fuzz::write_scratch("tokens.bin", "");
    fuzz::require(::truncate(bin.c_str(), bin_bytes) == 0, "the scratch file can be enlarged");
    const auto idx = fuzz::write_scratch("tokens.idx", input.rest());
    fuzz::accepts([&] {
      const data::TokenPair pair = data::open_megatron(bin, idx);
      fuzz::require(pair.documents <= size, "an index lists its documents");
      read_ids(pair.tokens, bin_bytes);
    });
  } else {
    const std::string bytes = input.rest();
    const auto npy = fuzz::write_scratch("tokens.npy", bytes);
    fuzz::accepts([&] { read_ids(data::open_npy(npy, kind == 1 ? 1000 : 100000), bytes.size()); });
  }
  return 0;
}
