// The JDK's HttpClient, by which LangChain4j talks: every plain-text POST offers an upgrade (`Upgrade: h2c`). The bodies
// are the requests of LangChain4j's models for chat completions and messages.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

public class Jdk {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static final String QUESTION = "{\"role\":\"user\",\"content\":\"How is the weather in Oslo and Zürich?\"}";
    static final String SCHEMA =
        "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}";
    static String url;

    record Call(String id, String name, String arguments) {
        String result() {
            return literal(first(arguments, "city") + ": sunny");
        }
    }

    /** Texts are JSON's, with their escapes. */
    record Answer(String thought, String text, List<Call> calls) {}

    static String literal(String text) {
        return "\"" + text + "\"";
    }

    /** The strings of a field, in order, without quotes. */
    static List<String> all(String json, String field) {
        var found = Pattern.compile("\"" + field + "\":\\s*\"((?:[^\"\\\\]|\\\\.)*)\"").matcher(json);
        return found.results().map(each -> each.group(1)).collect(Collectors.toList());
    }

    static String first(String json, String field) {
        return all(json, field).stream().findFirst().orElse("");
    }

    static String joined(String json, String field) {
        return String.join("", all(json, field));
    }

    static String unescaped(String text) {
        return text.replace("\\\"", "\"").replace("\\\\", "\\");
    }

    /** The document, or the data of a stream's events. */
    static String post(String path, String body, boolean stream) throws Exception {
        String whole = "{\"model\":\"m\",\"stream\":" + stream + "," + body + "}";
        var request = HttpRequest.newBuilder(URI.create(url + path))
            .header("Content-Type", "application/json")
            .header("x-api-key", "none")
            .POST(BodyPublishers.ofString(whole))
            .build();
        HttpResponse<Stream<String>> response = CLIENT.send(request, BodyHandlers.ofLines());
        String text = response.body()
            .filter(line -> !stream || line.startsWith("data: "))
            .collect(Collectors.joining("\n"));
        if (response.statusCode() != 200) {
            throw new IllegalStateException(response.statusCode() + ": " + text);
        }
        return text;
    }

    static Answer chat(String messages, boolean stream) throws Exception {
        String tool = "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":" + SCHEMA + "}}";
        String json = post("/v1/chat/completions", "\"messages\":[" + messages + "],\"tools\":[" + tool + "]", stream);
        var calls = new ArrayList<Call>();
        // A call's id and name come once, its arguments in one string or in many.
        String[] parts = json.split("\"id\":\"(?=call_)");
        for (int i = 1; i < parts.length; i++) {
            String id = parts[i].substring(0, parts[i].indexOf('"'));
            calls.add(new Call(id, first(parts[i], "name"), unescaped(joined(parts[i], "arguments"))));
        }
        return new Answer(joined(json, "reasoning_content"), joined(json, "content"), calls);
    }

    static void loopOfChat(boolean stream) throws Exception {
        Answer first = chat(QUESTION, stream);
        String calls = first.calls.stream()
            .map(call -> "{\"id\":" + literal(call.id) + ",\"type\":\"function\",\"function\":{\"name\":"
                + literal(call.name) + ",\"arguments\":" + literal(call.arguments.replace("\"", "\\\"")) + "}}")
            .collect(Collectors.joining(","));
        String results = first.calls.stream()
            .map(call -> ",{\"role\":\"tool\",\"tool_call_id\":" + literal(call.id) + ",\"content\":" + call.result() + "}")
            .collect(Collectors.joining());
        String turn = "{\"role\":\"assistant\",\"content\":" + literal(first.text) + ",\"reasoning_content\":"
            + literal(first.thought) + ",\"tool_calls\":[" + calls + "]}";
        report("chat", stream, first, chat(QUESTION + "," + turn + results, stream));
    }

    static Answer message(String messages, boolean stream) throws Exception {
        String tool = "{\"name\":\"get_weather\",\"input_schema\":" + SCHEMA + "}";
        String body = "\"max_tokens\":2000,\"messages\":[" + messages + "],\"tools\":[" + tool + "]";
        String json = post("/v1/messages", body, stream);
        var calls = new ArrayList<Call>();
        String[] parts = json.split("\"id\":\"(?=toolu_|call_)");
        for (int i = 1; i < parts.length; i++) {
            String id = parts[i].substring(0, parts[i].indexOf('"'));
            String input = stream
                ? unescaped(joined(parts[i], "partial_json"))
                : "{\"city\":" + literal(first(parts[i], "city")) + "}";
            calls.add(new Call(id, first(parts[i], "name"), input));
        }
        return new Answer(joined(json, "thinking"), joined(json, "text"), calls);
    }

    static void loopOfMessages(boolean stream) throws Exception {
        Answer first = message(QUESTION, stream);
        String calls = first.calls.stream()
            .map(call -> ",{\"type\":\"tool_use\",\"id\":" + literal(call.id) + ",\"name\":" + literal(call.name)
                + ",\"input\":" + call.arguments + "}")
            .collect(Collectors.joining());
        String results = first.calls.stream()
            .map(call -> "{\"type\":\"tool_result\",\"tool_use_id\":" + literal(call.id) + ",\"content\":" + call.result() + "}")
            .collect(Collectors.joining(","));
        String turn = "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":"
            + literal(first.thought) + "},{\"type\":\"text\",\"text\":" + literal(first.text) + "}" + calls + "]}";
        String last = "{\"role\":\"user\",\"content\":[" + results + "]}";
        report("messages", stream, first, message(QUESTION + "," + turn + "," + last, stream));
    }

    static void report(String protocol, boolean stream, Answer first, Answer second) {
        String calls = first.calls.stream()
            .map(call -> "[" + literal(call.name) + "," + call.arguments + "]")
            .collect(Collectors.joining(","));
        System.out.println("{\"protocol\":" + literal(protocol) + ",\"stream\":" + stream + ",\"thought\":"
            + literal(first.thought) + ",\"text\":" + literal(first.text) + ",\"calls\":[" + calls + "],\"answer\":"
            + literal(second.text) + "}");
    }

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        System.out.println("{\"versions\":\"JDK " + Runtime.version().toString().split("\\+")[0] + "\"}");
        for (boolean stream : new boolean[] {false, true}) {
            loopOfChat(stream);
            loopOfMessages(stream);
        }
    }
}
