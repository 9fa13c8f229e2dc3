// Reads and writes progress.json, the progress of an unfinished folder of token files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/data/text_preparation/text_batches.h"
#include "dtopp/data/text_preparation/token_file_writer.h"
#include "dtopp/data/tokens/token_folder.h"

namespace dtopp {

struct PrepareRecord {
  TextJob job;  // `documents` and `tokens` of each source count the finished part
  CorpusPosition position;
  WrittenTokens written;

  TokenFacts facts() const { return {job, written.documents, written.tokens, written.max_token}; }
};

// Replaces the folder's record. The record is on the device when the call returns.
void write_prepare_record(const std::filesystem::path& folder, const PrepareRecord& progress);
// Returns the folder's record, or nullopt if it does not exist or dtopp did not write it. Throws DataError if
// the record is damaged.
std::optional<PrepareRecord> read_prepare_record(const std::filesystem::path& folder);

// Returns how the job `now` differs from the job that made a folder, as the part of a message after the
// folder's name. Returns "" if the jobs agree.
std::string job_difference(const TextJob& there, const TextJob& now);

}  // namespace dtopp
