// Renders a report as one self-contained HTML file, which needs no network.
#pragma once

#include "dtopp/report/document.h"
#include "dtopp/report/input.h"

namespace dtopp::report {
// Returns the page. If `generation` is set, the page polls its server for updates.
std::string render_page(const ReportDocument& document, const Columns& columns,
                        std::optional<uint64_t> generation = std::nullopt);

// Writes the report of these runs atomically. Throws DataError if the file cannot be written.
void write_report(const ReportInput& input, const std::filesystem::path& output);

}  // namespace dtopp::report
