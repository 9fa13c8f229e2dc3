// A report as one HTML file, which asks nobody for anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/report/document/columns.h"
#include "dtopp/report/document/document.h"
#include "dtopp/report/sections/input.h"

namespace dtopp {

// The page; with a generation it asks the server it came from for news.
std::string render_page(const ReportDocument& document, const Columns& columns,
                        std::optional<uint64_t> generation = std::nullopt);

// Writes the report of these runs; complete or not at all. DataError when it cannot be written.
void write_report(const ReportInput& input, const std::filesystem::path& output);

}  // namespace dtopp
