//! Java: compiler, threads, processes, sockets and files.

use super::{run_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(java_compiles_and_runs);

async fn java_compiles_and_runs(setup: Setup) {
    let daemon = setup.start().await;
    let script = r#"
cat > Main.java <<'END'
import java.io.*; import java.net.*; import java.nio.file.*; import java.util.concurrent.*;
public class Main {
    public static void main(String[] words) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(16);
        int sum = 0;
        for (Future<Integer> part : pool.invokeAll(java.util.Collections.nCopies(100, (Callable<Integer>) () -> 1))) sum += part.get();
        pool.shutdown();
        Process process = new ProcessBuilder("sh", "-c", "read line; echo got $line").redirectErrorStream(true).start();
        try (Writer to = new OutputStreamWriter(process.getOutputStream())) { to.write("it\n"); }
        String answer = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
        ServerSocket server = new ServerSocket(0, 5, InetAddress.getByName("localhost"));
        new Thread(() -> { try (Socket to = server.accept()) { to.getOutputStream().write(7); } catch (IOException error) { throw new UncheckedIOException(error); } }).start();
        int read = new Socket("localhost", server.getLocalPort()).getInputStream().read();
        Path file = Files.createTempFile("a", "b");
        WatchService watch = FileSystems.getDefault().newWatchService();
        System.out.println(sum + " " + answer + " " + process.waitFor() + " " + read + " " + file.getParent() + " " + System.getProperty("user.name") + " " + System.getProperty("user.home") + " " + java.security.SecureRandom.getInstanceStrong().getAlgorithm());
        javax.net.ssl.SSLContext.getDefault();
        java.security.KeyStore.getInstance("PKCS12");
    }
}
END
javac -d classes Main.java; printf 'Main-Class: Main\n' > manifest; jar cfm main.jar manifest -C classes .; java -jar main.jar; jshell -version >/dev/null 2>&1 || true
java -Xshare:off -XX:+UseParallelGC -version 2>&1 | grep -c version
"#;
    let output = run_script(&daemon, script).await;
    assert!(output.starts_with("100 got it 0 7 /tmp agent /home/agent "), "{output}");
    assert!(output.ends_with("\n1\n"), "{output}");
}
