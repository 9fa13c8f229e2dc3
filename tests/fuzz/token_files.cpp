// Token ids: Megatron's .idx beside a .bin file of any size, and .npy files with and without a header.
#include <sys/stat.h>

#include "dtopp/data/tokens/megatron_index.h"
#include "dtopp/data/tokens/npy.h"
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

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t kind = input.choice(3);
  if (kind == 0) {
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
