#include "dtopp/data/tokens/token_file.h"

#include <algorithm>
#include <stdexcept>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/data/files/verified_files.h"
#include "dtopp/data/tokens/megatron_index.h"
#include "dtopp/data/tokens/npy.h"
#include "dtopp/data/tokens/token_folder.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

struct TokenParts {
  std::vector<TokenArray> arrays;
  uint64_t documents = 0;
};

fs::path with_ending(const fs::path& prefix, const char* ending) { return prefix.string() + ending; }

void add_pair(TokenParts& parts, const fs::path& prefix) {
  auto pair = open_megatron(with_ending(prefix, ".bin"), with_ending(prefix, ".idx"));
  parts.arrays.push_back(std::move(pair.tokens));
  parts.documents += pair.documents;
}

void add_file(TokenParts& parts, const fs::path& path, int64_t vocab_size) {
  if (path.extension() == ".npy")
    parts.arrays.push_back(open_npy(path, vocab_size));
  else
    add_pair(parts, fs::path(path).replace_extension());
}

// Lists the .bin and .npy files of the folder, sorted by name. An .idx file without its .bin file is listed
// too, so that opening it reports the missing file.
std::vector<fs::path> list_token_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    if (path.filename().string().starts_with(".")) continue;
    if (path.extension() == ".npy" || path.extension() == ".bin") files.push_back(path);
    if (path.extension() == ".idx" && !is_there(fs::path(path).replace_extension(".bin")))
      files.push_back(path);
  }
  if (error) throw DataError(folder.string() + ": cannot be listed: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

// Returns the facts in the manifest. Throws DataError if the folder holds a token file that the manifest does
// not list.
TokenFacts read_facts(const fs::path& folder, const std::vector<fs::path>& files, const Manifest& manifest) {
  for (const fs::path& path : files) {
    if (!manifest.files.contains(path.filename().string()))
      throw DataError(path.string() + ": not in this folder's manifest.json; move it elsewhere");
  }
  return data::read_facts(manifest, folder / kManifestName);
}

// Returns the prefix "a" for "a.bin" and "a.idx", and any other path unchanged.
fs::path prefix_of(const fs::path& path) {
  return path.extension() == ".bin" || path.extension() == ".idx" ? fs::path(path).replace_extension() : path;
}

}  // namespace

std::optional<fs::path> tokenizer_beside(const fs::path& data) {
  const fs::path path = data / kTokenizerName;
  return path_kind(path) == PathKind::kFile ? std::optional(path) : std::nullopt;
}

struct TokenStream::Impl {
  fs::path path;
  TokenParts parts;
  std::vector<uint64_t> first_token;  // offset of each array's first token, then the total
  std::optional<std::string> tokenizer_hash;
  std::optional<int64_t> end_of_text;
  int64_t max_token = -1;
  std::string content_hash;

  void open_folder(Verify verify, int64_t vocab_size);
  void open_single(int64_t vocab_size);
  void scan();
};

void TokenStream::Impl::open_folder(Verify verify, int64_t vocab_size) {
  require_finished(path, token_folder_kind());
  const auto files = list_token_files(path);
  std::optional<TokenFacts> facts;
  if (is_there(path / kManifestName)) {
    const Manifest manifest = read_verified_manifest(path, kTokenDataFormat, verify);
    facts = read_facts(path, files, manifest);
    content_hash = hash_of(manifest.files);
  } else if (files.empty()) {
    throw DataError(path.string() + ": holds no token files (.bin with .idx, or .npy)");
  }
  for (const fs::path& file : files) add_file(parts, file, vocab_size);
  if (!facts) return scan();
  uint64_t tokens = 0;
  for (const TokenArray& array : parts.arrays) tokens += array.size();
  if (tokens != facts->tokens || parts.documents != facts->documents)
    throw DataError((path / kManifestName).string() + ": counts " + std::to_string(facts->tokens) +
                    " tokens in " + std::to_string(facts->documents) + " documents, but the files hold " +
                    std::to_string(tokens) + " in " + std::to_string(parts.documents));
  tokenizer_hash = facts->tokenizer_hash;
  end_of_text = facts->end_of_text;
  max_token = facts->max_token;
}

void TokenStream::Impl::open_single(int64_t vocab_size) {
  if (path.extension() == ".npy")
    parts.arrays.push_back(open_npy(path, vocab_size));
  else if (is_there(with_ending(prefix_of(path), ".idx")) || is_there(with_ending(prefix_of(path), ".bin")))
    add_pair(parts, prefix_of(path));
  else
    throw DataError(
        path.string() + ": no token data; make it (dtopp prepare text FILES --tokenizer FILE --output " +
        path.string() + "), or give a folder, a .npy file, or the common prefix of a .bin and an .idx file");
  scan();
}

void TokenStream::Impl::scan() {
  Hasher ids;
  for (const TokenArray& array : parts.arrays) max_token = std::max(max_token, array.scan(ids));
  content_hash = ids.hexdigest();
}

TokenStream TokenStream::open(const fs::path& path, Verify verify, int64_t vocab_size) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  std::error_code unused;
  if (fs::is_directory(path, unused))
    impl->open_folder(verify, vocab_size);
  else
    impl->open_single(vocab_size);
  impl->first_token.push_back(0);
  for (const TokenArray& array : impl->parts.arrays)
    impl->first_token.push_back(impl->first_token.back() + array.size());
  return TokenStream(std::move(impl));
}

TokenStream::TokenStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream::~TokenStream() = default;

uint64_t TokenStream::size() const { return impl_->first_token.back(); }

void TokenStream::read(uint64_t offset, std::span<int64_t> out) const {
  if (offset > size() || out.size() > size() - offset)
    throw std::out_of_range("tokens " + std::to_string(offset) + " + " + std::to_string(out.size()) +
                            " lie beyond the " + std::to_string(size()) + " of " + path().string());
  const auto& first = impl_->first_token;
  auto part = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), offset) - first.begin()) - 1;
  for (; !out.empty(); ++part) {
    const uint64_t count = std::min<uint64_t>(out.size(), first[part + 1] - offset);
    impl_->parts.arrays[part].read(offset - first[part], out.first(count));
    offset += count;
    out = out.subspan(count);
  }
}

uint64_t TokenStream::documents() const { return impl_->parts.documents; }
std::optional<std::string> TokenStream::tokenizer_hash() const { return impl_->tokenizer_hash; }
std::optional<int64_t> TokenStream::end_of_text() const { return impl_->end_of_text; }
int64_t TokenStream::max_token() const { return impl_->max_token; }
const std::string& TokenStream::content_hash() const { return impl_->content_hash; }

void TokenStream::require_ids_below(int64_t vocab_size) const {
  if (max_token() < vocab_size) return;
  throw UsageError(path().string() + ": token id " + std::to_string(max_token()) +
                   " does not fit model.vocab_size " + std::to_string(vocab_size) +
                   "; raise model.vocab_size, or prepare the text again");
}
const fs::path& TokenStream::path() const { return impl_->path; }

}  // namespace dtopp::data
