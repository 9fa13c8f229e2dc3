#include "dtopp/data/text_preparation/text_batches.h"

#include <system_error>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/data/files/file_at_work.h"

namespace dtopp::data {

namespace fs = std::filesystem;

TokenizerEncoder::TokenizerEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  end_of_text = tokenizer.end_of_text();
  vocab_size = tokenizer.vocab_size();
  tokenizer_json = tokenizer.file_text();
  tokenizer_hash = tokenizer.hash();
}

BatchReader::BatchReader(const std::vector<fs::path>& files, CorpusPosition start, uint64_t batch_bytes,
                         LineOptions options)
    : position_(start), batch_bytes_(batch_bytes), options_(std::move(options)) {
  for (const fs::path& path : files) files_.push_back({path, fs::file_size(path), fs::last_write_time(path)});
  for (size_t i = 0; i < start.source; ++i) bytes_before_ += files_[i].size;
}

std::optional<TextBatch> BatchReader::next() {
  if (position_.source == files_.size()) return std::nullopt;
  return with_file_at_work(files_[position_.source].path.string(), [this] { return read_batch(); });
}

TextBatch BatchReader::read_batch() {
  const fs::path& path = files_[position_.source].path;
  if (!lines_) lines_.emplace(path, position_.text, options_);
  TextBatch batch;
  batch.path = path;
  bool more = true;
  while (batch.bytes < batch_bytes_) {
    std::string line;
    more = lines_->next(line);
    if (!more) break;
    batch.bytes += line.size() + 1;
    batch.lines.push_back({lines_->line_number(), std::move(line)});
  }
  position_.text = lines_->position();
  position_.input_bytes = bytes_before_ + lines_->file_bytes();
  if (!more) finish_source();
  batch.end = position_;
  return batch;
}

void BatchReader::finish_source() {
  const FileState& file = files_[position_.source];
  std::error_code gone;  // on an error, size and time are values that no file has, so the comparison fails
  if (fs::file_size(file.path, gone) != file.size || fs::last_write_time(file.path, gone) != file.changed)
    throw DataError(file.path.string() + ": changed while it was being read; run the same command again");
  lines_.reset();
  bytes_before_ += file.size;
  position_ = {position_.source + 1, {}, bytes_before_};
}

EncodedBatch BatchEncoder::operator()(TextBatch batch, int worker) {
  return with_file_at_work(batch.path.string(), [&] { return encode(batch, worker); });
}

EncodedBatch BatchEncoder::encode(TextBatch& batch, int worker) {
  DocumentParser& parser = parsers_[static_cast<size_t>(worker)];
  EncodedBatch encoded;
  encoded.end = batch.end;
  for (TextBatch::Line& line : batch.lines) {
    const auto document = parser.parse(batch.path, line.number, line.text);
    if (document.empty()) continue;
    const auto ids = at_line(batch.path, line.number, [&] { return encoder_.encode(document); });
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    encoded.ids.push_back(encoder_.end_of_text);
    encoded.document_ends.push_back(encoded.ids.size());
    encoded.text_bytes += document.size();
    line.text = {};  // frees the encoded line, so that a batch is not held as text and as ids at once
  }
  return encoded;
}

}  // namespace dtopp::data
