import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** A cluster for a class of tests: its nodes end with this JVM, however that ends. */
class Quorumlog implements AutoCloseable {
  final String bootstrap;
  private final String url, token;
  private final Process process;
  private final HttpClient http = HttpClient.newHttpClient();

  Quorumlog() throws Exception {
    var command = new ArrayList<>(List.of(System.getProperty("quorumlog", "quorumlog").split(" ")));
    var directory = Files.createTempDirectory("quorumlog").toString();
    command.addAll(List.of("up", "--dir", directory, "--port", "0", "--control", "0", "--json"));
    command.add("--until-stdin-closes"); // a pipe of this JVM: the kernel closes it
    process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    var document = new StringBuilder();
    for (String line; (line = process.inputReader().readLine()) != null && !line.equals("}"); ) {
      document.append(line);
    }
    bootstrap = field(document, "bootstrap");
    url = field(document, "url");
    token = field(document, "token");
  }

  String post(String path, String body) throws Exception {
    var request = HttpRequest.newBuilder(URI.create(url + path))
        .header("Authorization", "Bearer " + token)
        .POST(HttpRequest.BodyPublishers.ofString(body)).build();
    var answer = http.send(request, HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() != 200) throw new AssertionError(path + ": " + answer.body());
    return answer.body();
  }

  private static String field(CharSequence json, String name) {
    var found = Pattern.compile("\"" + name + "\": \"([^\"]*)\"").matcher(json);
    if (!found.find()) throw new IllegalStateException("the cluster did not start: " + json);
    return found.group(1);
  }

  @Override
  public void close() throws Exception {
    process.getOutputStream().close();
    process.waitFor();
  }
}
