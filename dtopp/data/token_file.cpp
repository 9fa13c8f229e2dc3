#include "dtopp/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/manifest.h"
#include "dtopp/data/megatron_index.h"
#include "dtopp/data/npy.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

// Ids laid end to end in one mapped file.
struct TokenArray {
  MappedFile file;
  std::span<const std::byte> ids;
  int token_bytes;

  uint64_t size() const { return ids.size() / static_cast<uint64_t>(token_bytes); }

  template <class Id>
  void copy(uint64_t offset, std::span<int64_t> out) const {
    const std::byte* from = ids.data() + offset * sizeof(Id);
    for (size_t i = 0; i < out.size(); ++i) {
      Id id;
      std::memcpy(&id, from + i * sizeof(Id), sizeof(Id));
      out[i] = id;
    }
  }
  void read(uint64_t offset, std::span<int64_t> out) const {
    switch (token_bytes) {
      case 2:
        return copy<uint16_t>(offset, out);
      case 4:
        return copy<uint32_t>(offset, out);
      default:
        return copy<int64_t>(offset, out);
    }
  }
};

bool has_manifest(const fs::path& path) { return fs::is_regular_file(path / "manifest.json"); }

fs::path with_suffix(const fs::path& prefix, const char* suffix) { return prefix.string() + suffix; }

}  // namespace

struct TokenStream::Impl {
  fs::path path;
  std::vector<TokenArray> arrays;
  std::vector<uint64_t> first = {0};  // of each array, then the total
  uint64_t documents = 0;
  int64_t max_token = -1;
  std::optional<std::string> tokenizer_hash;

  void add(TokenArray array) {
    first.push_back(first.back() + array.size());
    arrays.push_back(std::move(array));
  }
  void add_megatron(const fs::path& prefix);
  void add_npy(const fs::path& file, int64_t vocab_size);
  void add_folder(int64_t vocab_size);
  void read_manifest_of_folder(bool verify);
  void scan_for_largest();
};

void TokenStream::Impl::add_megatron(const fs::path& prefix) {
  const MappedFile index_file(with_suffix(prefix, ".idx"));
  const MegatronIndex index = parse_megatron_index(index_file.bytes(), index_file.path().string());
  MappedFile file(with_suffix(prefix, ".bin"));
  const uint64_t wanted = index.tokens * static_cast<uint64_t>(index.token_bytes);
  if (file.bytes().size() != wanted) {
    throw DataError(file.path().string() + ": has " + std::to_string(file.bytes().size()) +
                    " bytes, its index says " + std::to_string(wanted) +
                    ": truncated or damaged, prepare it again");
  }
  documents += index.documents;
  const auto ids = file.bytes();
  add({std::move(file), ids, index.token_bytes});
}

void TokenStream::Impl::add_npy(const fs::path& path, int64_t vocab_size) {
  MappedFile file(path);
  const NpyTokens tokens = parse_npy_tokens(file.bytes(), path.string(), vocab_size);
  add({std::move(file), tokens.ids, tokens.token_bytes});
}

void TokenStream::Impl::add_folder(int64_t vocab_size) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const fs::path& file = entry.path();
    if (file.extension() == ".idx" || file.extension() == ".npy") files.push_back(file);
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    if (file.extension() == ".npy") {
      add_npy(file, vocab_size);
    } else {
      add_megatron(fs::path(file).replace_extension());
    }
  }
  if (arrays.empty()) {
    throw DataError(path.string() +
                    ": holds no token files (.bin with .idx, or .npy); make them with dtopp prepare text");
  }
}

void TokenStream::Impl::read_manifest_of_folder(bool verify) {
  const Manifest manifest = read_manifest(path, kTokenDataFormat);
  if (verify) {
    verify_content(path, manifest.files);
  } else {
    verify_sizes(path, manifest.files);
  }
  const auto& about = manifest.about;
  if (const auto hash = about.find("tokenizer_hash"); hash != about.end() && hash->is_string())
    tokenizer_hash = *hash;
  if (const auto most = about.find("max_token"); most != about.end() && most->is_number_integer()) {
    max_token = most->get<int64_t>();
  }
}

void TokenStream::Impl::scan_for_largest() {
  std::vector<int64_t> block(1 << 16);
  for (const TokenArray& array : arrays) {
    for (uint64_t offset = 0; offset < array.size(); offset += block.size()) {
      const auto part = std::span(block).first(std::min<uint64_t>(block.size(), array.size() - offset));
      array.read(offset, part);
      const auto [least, most] = std::minmax_element(part.begin(), part.end());
      if (*least < 0) throw DataError(array.file.path().string() + ": holds a negative token id");
      max_token = std::max(max_token, *most);
    }
  }
}

TokenStream TokenStream::open(const fs::path& path, bool verify, int64_t vocab_size) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  if (fs::is_directory(path)) {
    if (has_manifest(path)) impl->read_manifest_of_folder(verify);
    impl->add_folder(vocab_size);
  } else if (path.extension() == ".npy") {
    impl->add_npy(path, vocab_size);
  } else {
    fs::path prefix = path;
    if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
    if (!fs::exists(with_suffix(prefix, ".idx"))) {
      throw DataError(path.string() +
                      ": no such token folder, .npy file or .bin/.idx pair; make it with dtopp prepare text");
    }
    impl->add_megatron(prefix);
  }
  if (impl->max_token < 0) impl->scan_for_largest();
  return TokenStream(std::move(impl));
}

TokenStream::TokenStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream::~TokenStream() = default;

uint64_t TokenStream::size() const { return impl_->first.back(); }

void TokenStream::read(uint64_t offset, std::span<int64_t> out) const {
  if (offset > size() || out.size() > size() - offset)
    throw std::out_of_range("TokenStream: read beyond the end");
  const auto& first = impl_->first;
  auto array = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), offset) - first.begin()) - 1;
  while (!out.empty()) {
    const uint64_t count = std::min<uint64_t>(out.size(), first[array + 1] - offset);
    impl_->arrays[array].read(offset - first[array], out.first(count));
    out = out.subspan(count);
    offset += count;
    ++array;
  }
}

uint64_t TokenStream::documents() const { return impl_->documents; }
std::optional<std::string> TokenStream::tokenizer_hash() const { return impl_->tokenizer_hash; }
int64_t TokenStream::max_token() const { return impl_->max_token; }
const fs::path& TokenStream::path() const { return impl_->path; }

}  // namespace dtopp
