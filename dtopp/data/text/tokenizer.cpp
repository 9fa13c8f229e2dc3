#include "dtopp/data/text/tokenizer.h"

#include <bitset>
#include <map>
#include <mutex>
#include <set>

#include <simdjson.h>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/data/text/byte_pair_encoding.h"
#include "dtopp/data/text/split_pattern.h"
#include "dtopp/data/text/tokenizer_json.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

uint8_t byte_at(std::string_view text, size_t offset) { return static_cast<uint8_t>(text[offset]); }

bool is_word_before(std::string_view text, size_t end) {
  return end > 0 && CodePointClasses::get().is_word(code_point_before(text, end).value);
}

bool is_word_at(std::string_view text, size_t begin) {
  return begin < text.size() && CodePointClasses::get().is_word(code_point_at(text, begin).value);
}

// Returns the start of the run of spaces that ends at `end`, but at least `limit`.
size_t skip_spaces_back(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const CodePoint c = code_point_before(text, end);
    if (!CodePointClasses::get().is_space(c.value)) break;
    end -= c.bytes;
  }
  return end;
}

// A byte range of a text: an added token, or the text between two of them (id -1).
struct TextSegment {
  int32_t id;
  size_t begin, end;
};

// Splits text at added tokens, as Hugging Face `tokenizers` does. The leftmost match wins, and the longest of
// those that begin there. Matches never overlap. The flags single_word, lstrip and rstrip apply to each match
// afterwards.
class AddedTokenMatcher {
 public:
  struct Pattern {
    std::string text;  // not empty
    int32_t id;
    bool single_word, lstrip, rstrip;
  };

  // If several patterns have the same text, the one with the lowest id is kept.
  explicit AddedTokenMatcher(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {
    const auto less = [](const Pattern& a, const Pattern& b) {
      return a.text != b.text ? a.text < b.text : a.id < b.id;
    };
    std::sort(patterns_.begin(), patterns_.end(), less);
    const auto same = [](const Pattern& a, const Pattern& b) { return a.text == b.text; };
    patterns_.erase(std::unique(patterns_.begin(), patterns_.end(), same), patterns_.end());
    for (size_t i = 0; i < patterns_.size(); ++i) {
      const std::string& text = patterns_[i].text;
      const size_t first = byte_at(text, 0);
      if (first_bytes_[first].end == 0) first_bytes_[first].begin = i;
      first_bytes_[first].end = i + 1;
      for (size_t second = 0; second < 256; ++second)
        if (text.size() == 1 || second == byte_at(text, 1)) first_pairs_.set(first << 8 | second);
    }
  }

  // Appends the segments of `text` (valid UTF-8); no segment is empty. A token inside the spaces that an
  // earlier rstrip covers is still reported, so segments may overlap.
  void split(std::string_view text, std::vector<TextSegment>& segments) const {
    const auto report = [&](int32_t id, size_t begin, size_t end) {
      if (begin < end) segments.push_back({id, begin, end});
    };
    size_t done = 0;  // everything before this offset is reported
    // End of the last spaces that an rstrip skipped. Many tokens may lie within them, so they are scanned
    // once.
    size_t spaces_end = 0;
    for (size_t i = 0; i < text.size() && !patterns_.empty();) {
      const Pattern* pattern = may_start(text, i) ? longest_at(text, i) : nullptr;
      if (pattern == nullptr) {
        ++i;
        continue;
      }
      size_t begin = i;
      size_t end = i + pattern->text.size();
      i = end;
      if (pattern->single_word && (is_word_before(text, begin) || is_word_at(text, end))) continue;
      if (pattern->lstrip) begin = std::max(done, skip_spaces_back(text, begin, done));
      if (pattern->rstrip) {
        if (end >= spaces_end)
          spaces_end =
              skip_code_points(text, end, [](char32_t c) { return CodePointClasses::get().is_space(c); });
        end = spaces_end;
      }
      report(-1, done, begin);
      report(pattern->id, begin, end);
      done = end;
    }
    report(-1, done, text.size());
  }

 private:
  struct Range {
    size_t begin = 0, end = 0;
  };

  // Narrows the sorted patterns, byte by byte, to those that match the text. The shortest of them comes
  // first.
  const Pattern* longest_at(std::string_view text, size_t offset) const {
    const Pattern* longest = nullptr;
    const Range range = first_bytes_[byte_at(text, offset)];
    auto begin = patterns_.begin() + static_cast<ptrdiff_t>(range.begin);
    auto end = patterns_.begin() + static_cast<ptrdiff_t>(range.end);
    for (size_t depth = 1; begin != end; ++depth) {
      if (begin->text.size() == depth) {
        longest = &*begin;
        if (++begin == end) break;
      }
      if (offset + depth == text.size()) break;
      const uint8_t next = byte_at(text, offset + depth);
      begin =
          std::partition_point(begin, end, [&](const Pattern& p) { return byte_at(p.text, depth) < next; });
      end =
          std::partition_point(begin, end, [&](const Pattern& p) { return byte_at(p.text, depth) == next; });
    }
    return longest;
  }

  bool may_start(std::string_view text, size_t offset) const {
    const size_t first = byte_at(text, offset);
    if (first_bytes_[first].end == 0) return false;
    return offset + 1 == text.size() || first_pairs_[first << 8 | byte_at(text, offset + 1)];
  }

  std::vector<Pattern> patterns_;       // sorted by text
  std::array<Range, 256> first_bytes_;  // range in patterns_ per first byte
  // First two bytes of a pattern, as first << 8 | second. A one-byte pattern sets all second bytes.
  std::bitset<65536> first_pairs_;
};

struct AddedTokens {
  struct Entry {
    AddedToken token;
    std::string spelling;  // the decoded text: content, or its NFC form if the token is normalized
  };
  std::map<int32_t, Entry> by_id;
  std::map<std::string, int32_t, std::less<>> ids;
  std::set<std::string, std::less<>> special;
};

// Assigns ids as Hugging Face does and ignores the ids in the file. A token of the vocabulary keeps its id
// there; the others are numbered from the vocabulary's size. `file` is the name in error messages.
AddedTokens assign_added_tokens(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                                const std::string& file) {
  AddedTokens added;
  int64_t next_id = std::ssize(vocabulary);
  for (const AddedToken& token : spec.added_tokens) {
    if (token.content.empty()) continue;
    const auto known = added.ids.find(token.content);
    std::optional<int32_t> id = known != added.ids.end() ? known->second : vocabulary.id(token.content);
    if (!id && next_id >= kMaxTokenId)
      throw DataError(file, ": added_tokens: more than ", kMaxTokenId, " tokens");
    if (!id) id = static_cast<int32_t>(next_id++);
    added.ids[token.content] = *id;
    std::string storage;
    const std::string_view spelling =
        spec.nfc && token.normalized ? normalize_nfc(token.content, storage) : token.content;
    added.by_id[*id] = {token, std::string(spelling)};
    if (token.special) added.special.insert(token.content);
  }
  return added;
}

// Finds the tokens that are matched in normalized text, or those matched in raw text.
AddedTokenMatcher make_matcher(const AddedTokens& added, bool normalized) {
  std::vector<AddedTokenMatcher::Pattern> patterns;
  for (const auto& [id, entry] : added.by_id) {
    const AddedToken& token = entry.token;
    if (token.normalized == normalized)
      patterns.push_back({entry.spelling, id, token.single_word, token.lstrip, token.rstrip});
  }
  return AddedTokenMatcher(std::move(patterns));
}

// Caches the ids of encoded words, for one thread. The cache is bounded and direct-mapped: a word replaces
// the word whose hash selects the same entry.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 31;
  static constexpr size_t kMaxIds = 7;

  // The word, padded with zeros to 32 bytes; the last byte is its length.
  using Key = std::array<uint64_t, 4>;

  // One cache line. The key of a free entry is all zeros, which no word has.
  struct alignas(64) Entry {
    Key key{};
    std::array<int32_t, kMaxIds> ids{};
    int32_t count = 0;
  };

  WordCache() : entries_(size_t{1} << kBits) {}

  // Returns the key of a word. Preconditions: `word` is not empty and not longer than kMaxWordBytes, and
  // `readable` bytes from its start may be read.
  static Key make_key(std::string_view word, size_t readable) {
    Key key{};
    if (readable >= sizeof(Key)) {
      std::memcpy(key.data(), word.data(), sizeof(Key));
      // Clears the bytes after the word, without a branch on its length.
      for (size_t i = 0; i < key.size(); ++i) {
        const int64_t bits = static_cast<int64_t>(8 * word.size()) - static_cast<int64_t>(64 * i);
        const uint64_t mask = bits >= 64 ? ~uint64_t{0} : bits <= 0 ? 0 : (uint64_t{1} << bits) - 1;
        key[i] &= mask;
      }
    } else {
      std::memcpy(key.data(), word.data(), word.size());
    }
    key[3] |= uint64_t{word.size()} << 56;
    return key;
  }

  // Returns the entry of a word. It holds the word if its key is equal.
  Entry& entry(const Key& key) {
    uint64_t hash = key[0] * 0x9E3779B97F4A7C15u ^ key[1] * 0xC2B2AE3D27D4EB4Fu;
    hash ^= key[2] * 0x165667B19E3779F9u ^ key[3] * 0xD6E8FEB86659FD93u;
    hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
    return entries_[hash >> (64 - kBits)];
  }

  static void store(Entry& entry, const Key& key, std::span<const int32_t> ids) {
    entry.key = key;
    entry.count = static_cast<int32_t>(ids.size());
    std::memcpy(entry.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static constexpr int kBits = 15;  // 2 MiB
  std::vector<Entry> entries_;
};

// Buffers of one encode() call, reused by later calls.
struct Workspace {
  WordCache cache;
  SplitPattern::Scratch matches;
  std::vector<TextSegment> raw_segments, segments;
  std::string normalized, prefixed, matched;
};

}  // namespace

struct Tokenizer::Impl {
  Impl(const TokenizerSpec& spec, const std::string& file, std::string json)
      : text(std::move(json)),
        hash(hash_bytes(text)),
        model(spec, file),
        added(assign_added_tokens(spec, model.vocabulary(), file)),
        raw_matcher(make_matcher(added, false)),
        normalized_matcher(make_matcher(added, true)),
        nfc(spec.nfc),
        space_marks(spec.space_marks),
        splits(compile_splits(spec.splits, file)),
        add_prefix_space(spec.add_prefix_space),
        use_regex(spec.use_regex),
        byte_level_decoder(spec.byte_level_decoder) {}

  // Normalizes text that holds no raw added token, then splits it at the normalized added tokens. at_begin:
  // the text begins with it.
  void encode_raw(std::string_view raw, bool at_begin, Workspace& work, std::vector<int32_t>& ids) const {
    const std::string_view normal = nfc ? normalize_nfc(raw, work.normalized) : raw;
    const std::string_view matched = splits.empty() ? normal : replace_new_code_points(normal, work.matched);
    work.segments.clear();
    normalized_matcher.split(normal, work.segments);
    for (const TextSegment& segment : work.segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else if (space_marks) {
        encode_marked(normal.substr(segment.begin, segment.end - segment.begin),
                      at_begin && segment.begin == 0, work, ids);
      } else {
        const size_t bytes = segment.end - segment.begin;
        encode_split(normal.substr(segment.begin, bytes), matched.substr(segment.begin, bytes), 0, work, ids);
      }
    }
  }

  void encode_marked(std::string_view piece, bool at_begin, Workspace& work,
                     std::vector<int32_t>& ids) const {
    mark_spaces(piece, at_begin, space_marks->first, work.prefixed);
    const std::string_view marked = work.prefixed;
    for (size_t begin = 0; begin < marked.size();) {
      const size_t end = space_marks->split ? find_marked_end(marked, begin) : marked.size();
      encode_word(marked.substr(begin, end - begin), marked.size() - begin, work.cache, ids);
      begin = end;
    }
  }

  // Divides text by the Split pre-tokenizers from number `split` on. They match `matched` instead, which has
  // the pieces at the same offsets.
  void encode_split(std::string_view text, std::string_view matched, size_t split, Workspace& work,
                    std::vector<int32_t>& ids) const {
    if (split == splits.size()) return encode_piece(text, work, ids);
    splits[split].for_each_piece(matched, work.matches, [&](size_t begin, size_t bytes) {
      encode_split(text.substr(begin, bytes), matched.substr(begin, bytes), split + 1, work, ids);
    });
  }

  void encode_piece(std::string_view piece, Workspace& work, std::vector<int32_t>& ids) const {
    if (add_prefix_space && piece.front() != ' ') {
      work.prefixed.assign(1, ' ').append(piece);
      piece = work.prefixed;
    }
    if (!use_regex) return encode_word(piece, piece.size(), work.cache, ids);
    const CodePointClasses& classes = CodePointClasses::get();
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = find_word_end(piece, begin, classes);
      encode_word(piece.substr(begin, end - begin), piece.size() - begin, work.cache, ids);
      begin = end;
    }
  }

  void encode_word(std::string_view word, size_t readable, WordCache& cache,
                   std::vector<int32_t>& ids) const {
    if (word.size() > WordCache::kMaxWordBytes) return model.encode(word, ids);
    const WordCache::Key key = WordCache::make_key(word, readable);
    WordCache::Entry& entry = cache.entry(key);
    if (entry.key != key) {
      const size_t before = ids.size();
      model.encode(word, ids);
      const std::span<const int32_t> found = std::span(ids).subspan(before);
      if (found.size() <= WordCache::kMaxIds) WordCache::store(entry, key, found);
      return;
    }
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
  }

  // The decoded text of an id; null if the id does not exist.
  const std::string* spelling(int32_t id) const {
    const auto found = added.by_id.find(id);
    return found != added.by_id.end() ? &found->second.spelling : model.vocabulary().token(id);
  }

  std::string join(std::span<const std::string* const> tokens) const {
    if (space_marks && space_marks->decodes) return unmark(tokens);
    std::string bytes;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (byte_level_decoder) {
        model.alphabet().append_bytes(bytes, *tokens[i]);
      } else {
        if (i > 0) bytes += ' ';
        bytes += *tokens[i];
      }
    }
    return replace_invalid_utf8(bytes);
  }

  std::string text, hash;
  BytePairEncoding model;
  AddedTokens added;
  AddedTokenMatcher raw_matcher, normalized_matcher;
  bool nfc;
  std::optional<SpaceMarks> space_marks;
  std::vector<SplitPattern> splits;
  bool add_prefix_space, use_regex, byte_level_decoder;

  // The pool of workspaces grows to the number of concurrent encode() calls. `mutex` guards it.
  std::unique_ptr<Workspace> borrow_workspace() const {
    {
      const std::lock_guard lock(mutex);
      if (!idle_workspaces.empty()) {
        auto workspace = std::move(idle_workspaces.back());
        idle_workspaces.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }

  void return_workspace(std::unique_ptr<Workspace> workspace) const {
    const std::lock_guard lock(mutex);
    idle_workspaces.push_back(std::move(workspace));
  }

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Workspace>> idle_workspaces;
};

Tokenizer Tokenizer::load(const fs::path& path) {
  std::string text = read_file(path, kMaxTokenizerBytes);
  const TokenizerSpec spec = parse_tokenizer_json(text, path.string());
  return Tokenizer(std::make_shared<Impl>(spec, path.string(), std::move(text)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  if (!simdjson::validate_utf8(text.data(), text.size()))
    throw DataError("byte ", find_invalid_utf8(text).value_or(0),
                    " is not valid UTF-8; convert the text to UTF-8");
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  auto work = impl_->borrow_workspace();
  work->raw_segments.clear();
  work->matches.set_text_bytes(text.size());
  impl_->raw_matcher.split(text, work->raw_segments);
  for (const TextSegment& segment : work->raw_segments) {
    if (segment.id >= 0)
      ids.push_back(segment.id);
    else
      impl_->encode_raw(text.substr(segment.begin, segment.end - segment.begin), segment.begin == 0, *work,
                        ids);
  }
  impl_->return_workspace(std::move(work));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<const std::string*> tokens;
  for (const int32_t id : ids) {
    tokens.push_back(impl_->spelling(id));
    if (tokens.back() == nullptr)
      throw DataError("token id ", id, " does not exist; the tokenizer has ", vocab_size(), " ids");
  }
  std::string text = impl_->join(tokens);
  if (impl_->space_marks && impl_->space_marks->strips_first && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string Tokenizer::decode_generated(std::span<const int32_t> ids) const {
  std::vector<const std::string*> tokens;
  for (const int32_t id : ids) {
    const std::string* token = impl_->spelling(id);
    if (token != nullptr && !impl_->added.special.contains(*token)) tokens.push_back(token);
  }
  return impl_->join(tokens);
}

int64_t Tokenizer::text_bytes(int32_t id) const {
  const std::string* token = impl_->spelling(id);
  if (token == nullptr || impl_->added.special.contains(*token)) return 0;
  std::string bytes;
  if (impl_->space_marks && impl_->space_marks->decodes) return marked_bytes(*token);
  if (!impl_->byte_level_decoder) return std::ssize(*token);
  impl_->model.alphabet().append_bytes(bytes, *token);
  return std::ssize(bytes);
}

int64_t Tokenizer::vocab_size() const {
  const int64_t largest = impl_->model.vocabulary().largest_id();
  return 1 + (impl_->added.by_id.empty() ? largest
                                         : std::max<int64_t>(largest, impl_->added.by_id.rbegin()->first));
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = impl_->added.ids.find(token);
  return found != impl_->added.ids.end() ? found->second : impl_->model.vocabulary().id(token);
}

std::optional<std::string_view> Tokenizer::end_of_text_token() const {
  for (const std::string_view token : kEndOfTextTokens)
    if (impl_->added.ids.contains(token)) return token;
  return std::nullopt;
}

int32_t Tokenizer::end_of_text() const {
  if (const auto token = end_of_text_token()) return *token_to_id(*token);
  throw DataError("the tokenizer has no added token that closes each document; add one of ",
                  joined({kEndOfTextTokens.begin(), kEndOfTextTokens.end()}, ", "));
}

const std::string& Tokenizer::file_text() const { return impl_->text; }
const std::string& Tokenizer::hash() const { return impl_->hash; }

}  // namespace dtopp::data
