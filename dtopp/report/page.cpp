#include "dtopp/report/page.h"

#include "dtopp/base/files.h"
#include "dtopp/report/page_files.h"
#include "dtopp/report/sections.h"

namespace dtopp::report {
namespace {

std::string replaced(const std::string& text, const std::map<char, std::string_view>& by) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto found = by.find(c);
    result += found == by.end() ? std::string_view(&c, 1) : found->second;
  }
  return result;
}

std::string head(const ReportDocument& document, bool is_live) {
  // The policy forbids network requests; with --serve it permits requests to the page's own server.
  const std::string policy = std::string(
                                 "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                 "img-src data:; base-uri 'none'; form-action 'none'") +
                             (is_live ? "; connect-src 'self'" : "");
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"" +
         policy +
         "\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<link rel=\"icon\" href=\"data:,\">\n<title>" +
         replaced(document.title, {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}}) +
         "</title>\n<style>\n" + std::string(kPageStyle) +
         "</style>\n</head>\n<body>\n<main id=\"report\"></main>\n"
         "<noscript>This report needs JavaScript, which is disabled here.</noscript>\n";
}

}  // namespace

std::string render_page(const ReportDocument& document, const Columns& columns,
                        std::optional<uint64_t> generation) {
  std::string page = head(document, generation.has_value());
  // No "<" in the JSON may end its element.
  page += "<script type=\"application/json\" id=\"document\">" +
          replaced(to_json(document, columns, generation), {{'<', "\\u003c"}}) + "</script>\n";
  // The script precedes the columns, so that a large page is drawn while it loads.
  page += "<script>\n\"use strict\";\n" + std::string(kPageScript) + "</script>\n";
  for (size_t id = 0; id < columns.all().size(); ++id) {
    const ReportColumn& column = columns.all()[id];
    if (column.bytes.empty()) continue;
    page += "<script type=\"text/plain\" id=\"column-" + std::to_string(id) + "\">" + base64_of(column, 0) +
            "</script>\n";
  }
  return page + "</body>\n</html>\n";
}

void write_report(const ReportInput& input, const fs::path& output) {
  Columns columns;
  const ReportDocument document = make_document(input, columns);
  write_file_atomically(output, render_page(document, columns));
}

}  // namespace dtopp::report
