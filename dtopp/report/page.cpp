#include "dtopp/report/page.h"

#include "dtopp/base/files.h"
#include "dtopp/report/page_files.h"
#include "dtopp/report/sections.h"

namespace dtopp::report {
namespace {

// Escapes JSON for a script element, so that no "<" in it can end the element.
std::string inside_script(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
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
         escaped(document.title) + "</title>\n<style>\n" + std::string(kPageStyle) +
         "</style>\n</head>\n<body>\n<main id=\"report\"></main>\n"
         "<noscript>This report needs JavaScript, which is disabled here.</noscript>\n";
}

}  // namespace

std::string render_page(const ReportDocument& document, const Columns& columns,
                        std::optional<uint64_t> generation) {
  std::string page = head(document, generation.has_value());
  page += "<script type=\"application/json\" id=\"document\">" +
          inside_script(to_json(document, columns, generation)) + "</script>\n";
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

void write_report(const ReportInput& input, const std::filesystem::path& output) {
  Columns columns;
  const ReportDocument document = make_document(input, columns);
  write_file_atomically(output, render_page(document, columns));
}

}  // namespace dtopp::report
