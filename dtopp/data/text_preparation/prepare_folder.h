// The output folder of a preparation of text.
#pragma once

#include <filesystem>
#include <optional>

#include "dtopp/data/text_preparation/prepare_record.h"
#include "dtopp/data/tokens/token_folder.h"

namespace dtopp {

// What a complete folder holds, its files checked against its manifest; nothing where it is not complete.
// UsageError naming what does not belong to a preparation, or when the folder was made by another job;
// DataError for what is damaged. Changes nothing.
std::optional<TokenFacts> find_complete(const std::filesystem::path& folder, const TextJob& job);

// Of a folder that is locked and not complete: how far it is, or its first record, which is written. Errors
// as above.
PrepareRecord begin_folder(const std::filesystem::path& folder, TextJob job);

// Removes what only an unfinished folder needs, where the record that tells of it is dtopp's.
void clear_up(const std::filesystem::path& folder);

}  // namespace dtopp
