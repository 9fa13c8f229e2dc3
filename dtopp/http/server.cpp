#include "dtopp/http/server.h"

#include <array>
#include <set>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"

namespace dtopp::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr uint32_t kMaxHeader = 16384;
constexpr size_t kMaxUnsent = size_t{8} << 20;  // bytes that a client has not taken yet
constexpr auto kLinger = std::chrono::seconds(2);
constexpr auto kLastAnswers = std::chrono::seconds(5);
constexpr auto kPollTime = std::chrono::milliseconds(100);
constexpr auto kAcceptAgain = std::chrono::milliseconds(100);  // after a failure, such as too many open files

class Connection;

// The open connections of one server.
class Connections {
 public:
  Connections(tcp::acceptor& acceptor, Handler& handler, const ServerLimits& limits)
      : acceptor_(acceptor), retry_(acceptor.get_executor()), handler_(handler), limits_(limits) {
    accept();
  }

  void remove(Connection& connection);
  // Accepts no more clients, and closes connections whose request is not complete.
  void stop();
  bool empty() const { return open_.empty(); }
  Handler& handler() const { return handler_; }
  const ServerLimits& limits() const { return limits_; }

 private:
  void accept();

  tcp::acceptor& acceptor_;
  asio::steady_timer retry_;
  Handler& handler_;
  const ServerLimits& limits_;
  std::set<std::shared_ptr<Connection>> open_;
  bool is_accepting_ = false;
};

// Reads one request and sends one answer. Afterwards it reads and drops what the client still sends, for up
// to kLinger: a socket that is closed with unread bytes would take the answer back.
class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Connections& connections)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), connections_(connections) {
    parser_.header_limit(kMaxHeader);
    parser_.body_limit(connections.limits().body_bytes);
  }

  void start() {
    set_time(connections_.limits().request);
    http::async_read(socket_, buffer_, parser_,
                     [self = shared_from_this()](error_code error, size_t) { self->receive(error); });
  }

  void answer(const Answer& answer) override {
    on_thread([text = text_of(answer)](Connection& self) { self.write(text, true); });
  }
  void begin_stream(std::string_view type) override {
    std::string text = head(200, type, {});
    text += is_chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
    on_thread([text = std::move(text)](Connection& self) { self.write(text, false); });
  }
  void send(std::string_view part) override {
    if (part.empty()) return;
    std::string text(part);
    if (is_chunked_) text = format("%zx\r\n", part.size()) + text + "\r\n";
    on_thread([text = std::move(text)](Connection& self) { self.write(text, false); });
  }
  void end_stream() override {
    on_thread([](Connection& self) { self.write(self.is_chunked_ ? "0\r\n\r\n" : "", true); });
  }
  bool is_open() const override { return is_open_; }

  bool is_receiving() const { return is_receiving_; }

  void close() {
    is_open_ = false;
    error_code ignored;
    timer_.cancel(ignored);
    socket_.close(ignored);
    connections_.remove(*this);
  }

 private:
  template <typename Body>
  void on_thread(Body body) {
    asio::post(socket_.get_executor(), [self = shared_from_this(), body = std::move(body)] {
      if (self->socket_.is_open() && !self->is_ended_) body(*self);
    });
  }

  static std::string head(int status, std::string_view type,
                          const std::vector<std::pair<std::string, std::string>>& fields) {
    std::string text = format("HTTP/1.1 %d ", status) +
                       std::string(http::obsolete_reason(static_cast<http::status>(status))) +
                       "\r\nContent-Type: " + std::string(type) +
                       "\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
                       "X-Content-Type-Options: nosniff\r\nConnection: close\r\n";
    for (const auto& [name, value] : fields) text.append(name).append(": ").append(value).append("\r\n");
    return text;
  }

  static std::string text_of(const Answer& answer) {
    return head(answer.status, answer.type, answer.fields) +
           format("Content-Length: %zu\r\n\r\n", answer.body.size()) + answer.body;
  }

  // Ends the phase after this time.
  void set_time(std::chrono::seconds time) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error) return;
      // A client whose answer has not begun gets one, unless it has sent nothing.
      if (self->has_begun_ || (self->is_receiving_ && !self->parser_.got_some())) return self->close();
      self->is_open_ = false;
      const int status = std::exchange(self->is_receiving_, false) ? 408 : 503;
      // Written at once: a part of an answer that another thread posts now comes too late.
      self->write(text_of(self->connections_.handler().refuse(status)), true);
      self->set_time(kLinger);
    });
  }

  void receive(error_code error) {
    if (!socket_.is_open()) return;
    if (!std::exchange(is_receiving_, false)) return drop_input();  // it was refused meanwhile
    if (error && error.category() != http::make_error_code({}).category()) return close();
    if (error == http::error::end_of_stream) return close();
    set_time(connections_.limits().answer);
    answer_request(error);
    drop_input();
  }

  void answer_request(error_code error) {
    if (error == http::error::header_limit) return refuse(431);
    if (error == http::error::body_limit) return refuse(413);
    if (error) return refuse(400);
    auto& message = parser_.get();
    is_chunked_ = message.version() >= 11;
    const auto text = [](auto view) { return std::string(view.data(), view.size()); };
    const Request request{text(message.method_string()),
                          text(message.target()),
                          text(message[http::field::host]),
                          text(message[http::field::origin]),
                          text(message[http::field::authorization]),
                          std::move(message.body())};
    connections_.handler().handle(request, shared_from_this());
  }

  void refuse(int status) { answer(connections_.handler().refuse(status)); }

  // Reads until the client leaves.
  void drop_input() {
    socket_.async_read_some(asio::buffer(dropped_), [self = shared_from_this()](error_code error, size_t) {
      if (!self->socket_.is_open()) return;
      if (!error) return self->drop_input();
      self->is_open_ = false;
      self->is_input_over_ = true;
      if (!self->is_ended_ || !self->is_writing_) self->close();
    });
  }

  void write(const std::string& text, bool is_last) {
    has_begun_ = true;
    is_ended_ = is_last;
    unsent_ += text;
    if (unsent_.size() > kMaxUnsent + connections_.limits().body_bytes && !is_last) return close();
    if (!is_writing_) write_more();
  }

  void write_more() {
    is_writing_ = true;
    sending_ = std::move(unsent_);
    unsent_.clear();
    asio::async_write(socket_, asio::buffer(sending_), [self = shared_from_this()](error_code error, size_t) {
      self->is_writing_ = false;
      if (!self->socket_.is_open()) return;
      if (error) return self->close();
      if (!self->unsent_.empty()) return self->write_more();
      if (!self->is_ended_) return;
      self->is_open_ = false;
      if (self->is_input_over_) return self->close();
      error_code ignored;
      self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
      self->set_time(kLinger);
    });
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  Connections& connections_;
  beast::flat_buffer buffer_;
  http::request_parser<http::string_body> parser_;
  std::array<char, 4096> dropped_{};
  std::string unsent_, sending_;
  bool is_receiving_ = true, is_input_over_ = false, has_begun_ = false, is_ended_ = false,
       is_writing_ = false, is_chunked_ = true;
  std::atomic<bool> is_open_ = true;
};

void Connections::accept() {
  is_accepting_ = true;
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    is_accepting_ = false;
    if (!acceptor_.is_open()) return;
    if (error) {
      is_accepting_ = true;
      retry_.expires_after(kAcceptAgain);
      retry_.async_wait([this](error_code) {
        is_accepting_ = false;
        if (acceptor_.is_open()) accept();
      });
      return;
    }
    auto connection = std::make_shared<Connection>(std::move(socket), *this);
    open_.insert(connection);
    connection->start();
    if (open_.size() < limits_.connections) accept();
  });
}

void Connections::remove(Connection& connection) {
  open_.erase(connection.shared_from_this());
  if (!is_accepting_ && acceptor_.is_open() && open_.size() < limits_.connections) accept();
}

void Connections::stop() {
  error_code ignored;
  acceptor_.close(ignored);
  const auto connections = open_;
  for (const auto& connection : connections)
    if (connection->is_receiving() || !connection->is_open()) connection->close();
}

tcp::acceptor listen_on(asio::io_context& context, const std::string& address, uint16_t port,
                        const std::string& option) try {
  error_code error;
  const asio::ip::address parsed = asio::ip::make_address(address, error);
  if (error) throw UsageError("address ", address, ": is not an IP address, such as 127.0.0.1");
  return {context, tcp::endpoint(parsed, port)};
} catch (const boost::system::system_error& error) {
  throw UsageError(option, ": port ", port, " of ", address, " cannot be opened: ", error.code().message(),
                   "; use another one");
}

}  // namespace

struct Server::Listener {
  Listener(const std::string& address, uint16_t port, const std::string& option)
      : acceptor(listen_on(context, address, port, option)) {}

  asio::io_context context;
  tcp::acceptor acceptor;
};

Server::Server(const std::string& address, uint16_t port, const ServerLimits& limits,
               const std::string& option)
    : listener_(std::make_unique<Listener>(address, port, option)), limits_(limits) {}

Server::~Server() = default;

uint16_t Server::port() const { return listener_->acceptor.local_endpoint().port(); }

void Server::run(Handler& handler, const StopToken& stop) {
  Connections connections(listener_->acceptor, handler, limits_);
  while (!stop.stop_requested()) listener_->context.run_for(kPollTime);
  connections.stop();
  const auto end = std::chrono::steady_clock::now() + kLastAnswers;
  while (!connections.empty() && std::chrono::steady_clock::now() < end) {
    listener_->context.restart();
    listener_->context.run_for(kPollTime);
    connections.stop();  // closes those whose answer has been sent
  }
}

std::string random_token() { return random_digits() + random_digits(); }

}  // namespace dtopp::http
