//! C and C++: compilers, libraries, make with a job server, CMake and Ninja, sanitizers.

use super::{run_script, try_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(
    make_builds_a_project,
    cmake_and_ninja_build,
    sanitizers_report_memory_errors_and_races
);

const PROJECT: &str = r#"
mkdir -p src include
cat > include/sum.h <<'END'
int sum(int count);
END
for n in 1 2 3 4 5 6; do echo "int part_$n(void) { return $n; }" > src/part_$n.c; done
cat > src/sum.c <<'END'
#include "sum.h"
int part_1(void), part_2(void), part_3(void), part_4(void), part_5(void), part_6(void);
int sum(int count) { return count * (part_1() + part_2() + part_3() + part_4() + part_5() + part_6()); }
END
cat > src/main.c <<'END'
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include "sum.h"
static void *work(void *result) { *(int *)result = sum(2); return 0; }
int main(void) {
    pthread_t thread; int result;
    pthread_create(&thread, 0, work, &result);
    pthread_join(thread, 0);
    printf("%d %.0f\n", result, sqrt(result - 6.0));
}
END
cat > Makefile <<'END'
CFLAGS = -O1 -g -Wall -Werror -Iinclude -MMD
PARTS = $(patsubst src/%.c,build/%.o,$(wildcard src/part_*.c)) build/sum.o
build/program: build/main.o build/libsum.a
	$(CC) -pthread -o $@ $^ -lm
build/libsum.a: $(PARTS)
	$(AR) rcs $@ $^
build/libsum.so: $(wildcard src/part_*.c) src/sum.c | build
	$(CC) -shared -fPIC -Iinclude -o $@ $(filter %.c,$^)
build/%.o: src/%.c | build
	$(CC) $(CFLAGS) -c -o $@ $<
build:
	mkdir -p $@
below:
	$(MAKE) build/program build/libsum.so
clean:
	rm -rf build
.PHONY: clean below
-include $(wildcard build/*.d)
END
"#;

async fn make_builds_a_project(setup: Setup) {
    let daemon = setup.start().await;

    run_script(&daemon, PROJECT).await;
    let output = run_script(
        &daemon,
        "make -j8 >/dev/null; build/program; make -j8 | tail -1; touch include/sum.h; make -j2 | grep -c main.c; \
         make clean >/dev/null; make -j4 below | grep -c part_; gcc -o shared -Iinclude src/main.c -Lbuild -l:libsum.so -lm -Wl,-rpath,'$ORIGIN/build'; \
         ./shared; nm build/libsum.a | grep -c ' T '; ldd shared | grep -c 'libsum.so => /workspace'",
    )
    .await;
    let upto = "make: 'build/program' is up to date.";
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!((lines[0], lines[1], lines[2]), ("42 6", upto, "1"), "{output}");
    assert_eq!(&lines[4..], ["42 6", "7", "1"], "{output}");

    // Processes of make share job tokens through a FIFO since version 4.4, through a pipe before.
    let jobs = "printf 'all: a b c\\na b c:\\n\\t@echo $$MAKEFLAGS\\n' > jobs.mk; make -j3 -f jobs.mk | grep -c jobserver-auth";
    assert_eq!(run_script(&daemon, jobs).await, "3\n");

    let fifo = "mkfifo tokens; exec 3<> tokens; printf ++ >&3; MAKEFLAGS='-j3 --jobserver-auth=3,3' make -f jobs.mk 3<&3 | wc -l";
    assert_eq!(run_script(&daemon, fifo).await, "3\n");
}

async fn cmake_and_ninja_build(setup: Setup) {
    let daemon = setup.start().await;
    let project = r#"
cat > CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.16)
project(sample C CXX)
enable_testing()
add_library(part STATIC part.c)
add_executable(sample main.cpp)
target_link_libraries(sample part)
add_test(NAME runs COMMAND sample)
END
echo 'int part(void) { return 7; }' > part.c
cat > main.cpp <<'END'
#include <iostream>
#include <thread>
extern "C" int part(void);
int main() { int n = 0; std::thread t([&] { n = part(); }); t.join(); std::cout << n << "\n"; return n != 7; }
END
cmake -G Ninja -B out . >/dev/null
cmake --build out >/dev/null
out/sample
cd out && ctest | grep -c '100% tests passed'
"#;
    assert_eq!(run_script(&daemon, project).await, "7\n1\n");
}

async fn sanitizers_report_memory_errors_and_races(setup: Setup) {
    let daemon = setup.start().await;

    let sources = r#"
cat > overflow.c <<'END'
#include <stdlib.h>
int main(int count, char **words) { char *text = malloc(4); text[count + 3] = 1; free(text); return 0; }
END
cat > race.c <<'END'
#include <pthread.h>
int shared;
static void *work(void *nothing) { shared++; return nothing; }
int main(void) {
    pthread_t one, two;
    pthread_create(&one, 0, work, 0); pthread_create(&two, 0, work, 0);
    pthread_join(one, 0); pthread_join(two, 0);
    return 0;
}
END
gcc -g -fsanitize=address,undefined -o overflow overflow.c
gcc -g -fsanitize=thread -o race race.c
"#;
    run_script(&daemon, sources).await;
    let response = try_script(&daemon, "ASAN_OPTIONS=detect_leaks=0 ./overflow", &[]).await;
    assert!(response.stderr.contains("heap-buffer-overflow"), "{}", response.stderr);

    // `setarch -R` turns address randomization off. ThreadSanitizer re-executes itself without it
    // if the kernel randomizes more than it supports.
    let response = try_script(&daemon, "setarch -R ./race", &[]).await;
    assert!(response.stderr.contains("data race"), "{}", response.stderr);
}
