#include "dtopp/report/page/server.h"

#include <charconv>
#include <chrono>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"

namespace dtopp::report {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr uint32_t kMaxRequest = 16384;
constexpr size_t kMaxConnections = 64;
constexpr auto kRequestTime = std::chrono::seconds(10);  // from accepting to the last byte of the header
constexpr auto kAnswerTime = std::chrono::seconds(30);
constexpr auto kPollTime = std::chrono::milliseconds(200);

using Request = http::request<http::empty_body>;
using Answer = http::response<http::string_body>;

Answer answer(http::status status, std::string_view type, std::string body) {
  Answer result(status, 11, std::move(body));
  result.set(http::field::content_type, std::string(type) + "; charset=utf-8");
  result.set(http::field::cache_control, "no-store");
  result.set("Referrer-Policy", "no-referrer");
  result.set("X-Content-Type-Options", "nosniff");
  result.keep_alive(false);
  result.prepare_payload();
  return result;
}

Answer refusal(http::status status) {
  return answer(status, "text/plain", std::string(http::obsolete_reason(status)) + "\n");
}

Answer answer_to(const Request& request, std::string_view root, LiveReport& report) {
  std::string_view target(request.target().data(), request.target().size());
  if (!target.starts_with(root)) return refusal(http::status::not_found);
  if (request.method() != http::verb::get) return refusal(http::status::method_not_allowed);
  target.remove_prefix(root.size());
  if (target.empty()) return answer(http::status::ok, "text/html", report.page());
  constexpr std::string_view kUpdate = "update?since=";
  if (!target.starts_with(kUpdate)) return refusal(http::status::not_found);
  target.remove_prefix(kUpdate.size());
  uint64_t since = 0;
  const auto [end, error] = std::from_chars(target.data(), target.data() + target.size(), since);
  if (error != std::errc{} || end != target.data() + target.size()) return refusal(http::status::bad_request);
  return answer(http::status::ok, "application/json", report.news(since));
}

// Returns 128 random bits in hexadecimal digits. Other users of the machine cannot guess the address.
std::string random_token() {
  std::random_device device;
  std::string token;
  for (int word = 0; word < 4; ++word) token += format("%08x", device());
  return token;
}

// The open connections of one server. Each reads one request, writes one answer and closes.
class Connections {
 public:
  Connections(tcp::acceptor& acceptor, std::string_view root, LiveReport& report)
      : acceptor_(acceptor), root_(root), report_(report) {
    accept();
  }

 private:
  struct Connection {
    explicit Connection(tcp::socket socket) : stream(std::move(socket)) { parser.header_limit(kMaxRequest); }

    beast::tcp_stream stream;
    beast::flat_buffer buffer;
    http::request_parser<http::empty_body> parser;
    Answer answer;
  };

  // At kMaxConnections, further clients wait in the system's queue until a connection ends.
  void accept() {
    acceptor_.async_accept([this](beast::error_code error, tcp::socket socket) {
      if (!error) {
        ++open_;
        receive(std::make_shared<Connection>(std::move(socket)));
      }
      if (open_ < kMaxConnections) accept();
    });
  }

  void receive(const std::shared_ptr<Connection>& connection) {
    connection->stream.expires_after(kRequestTime);
    http::async_read_header(connection->stream, connection->buffer, connection->parser,
                            [this, connection](beast::error_code error, size_t) {
                              if (error && error.category() != http::make_error_code({}).category())
                                return close(*connection);
                              connection->answer = answer_to_header(connection->parser, error);
                              send(connection);
                            });
  }

  Answer answer_to_header(const http::request_parser<http::empty_body>& parser, beast::error_code error) {
    if (error == http::error::header_limit) return refusal(http::status::request_header_fields_too_large);
    if (error) return refusal(http::status::bad_request);
    return answer_to(parser.get(), root_, report_);
  }

  void send(const std::shared_ptr<Connection>& connection) {
    connection->stream.expires_after(kAnswerTime);
    http::async_write(connection->stream, connection->answer,
                      [this, connection](beast::error_code, size_t) { close(*connection); });
  }

  void close(Connection& connection) {
    beast::error_code ignored;
    connection.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    if (open_-- == kMaxConnections) accept();
  }

  tcp::acceptor& acceptor_;
  std::string_view root_;
  LiveReport& report_;
  size_t open_ = 0;
};

tcp::acceptor listen_on(asio::io_context& context, uint16_t port) try {
  return {context, tcp::endpoint(asio::ip::address_v4::loopback(), port)};
} catch (const boost::system::system_error& error) {
  throw UsageError("--serve: port " + std::to_string(port) + " cannot be opened: " + error.code().message() +
                   "; use another port, or omit it to get a free one");
}

}  // namespace

struct ReportServer::Listener {
  explicit Listener(uint16_t port) : acceptor(listen_on(context, port)) {}

  asio::io_context context;
  tcp::acceptor acceptor;
  std::string root = "/" + random_token() + "/";
};

ReportServer::ReportServer(uint16_t port) : listener_(std::make_unique<Listener>(port)) {}

ReportServer::~ReportServer() = default;

std::string ReportServer::address() const {
  return "http://127.0.0.1:" + std::to_string(listener_->acceptor.local_endpoint().port()) + listener_->root;
}

void ReportServer::serve(LiveReport& report, bool (*stop)()) {
  Connections connections(listener_->acceptor, listener_->root, report);
  while (!stop()) listener_->context.run_for(kPollTime);
}

}  // namespace dtopp::report
