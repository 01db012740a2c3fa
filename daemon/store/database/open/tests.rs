//! Which databases are opened, which are rejected, and with which error.

use super::*;

fn open(path: &Path) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let database = Database::open(path, false).map_err(|error| error.to_string())?;
    let tables = |connection: &Connection| {
        connection.query_row("SELECT count(*) FROM request", [], |row| row.get::<_, i64>(0))
    };
    let found = runtime.block_on(database.apply(tables));
    found.map(drop).map_err(|error| error.to_string())
}

#[test]
fn database_is_created_and_reopened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    open(&path).unwrap();
    open(&path).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// One with a response, and one without.
const REQUESTS: &str = "
    INSERT INTO request (principal, workspace, id, method, session, fingerprint, life, begun_ms, answer, answer_bytes)
    VALUES ('p', 'w', 'answered', 'm', 's', x'', 'l', 1, x'00', 1), ('p', 'w', 'lost', 'm', 's', x'', 'l', 1, NULL, 0);";

#[test]
fn older_database_is_migrated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    let connection = Connection::open(&path).unwrap();
    let older = format!(
        "{} INSERT INTO fact VALUES ('kept', x'01'); {REQUESTS} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1",
        MIGRATIONS[0]
    );
    connection.execute_batch(&older).unwrap();
    drop(connection);
    open(&path).unwrap();
    let connection = Connection::open(&path).unwrap();
    let newest = i32::try_from(MIGRATIONS.len()).unwrap();
    assert_eq!(read_header(&connection).unwrap(), (APPLICATION_ID, newest));
    let count = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        connection.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("fact"), count("approval"), count("rule")), (2, 0, 0));
    let ended = "request WHERE ended_ms > (unixepoch() - 3600) * 1000 AND id = 'answered'";
    assert_eq!((count("request"), count(ended)), (2, 1));
    assert_eq!(count("request WHERE ended_ms IS NULL AND id = 'lost'"), 1);
    let mode = connection.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i32>(0));
    assert_eq!(mode.unwrap(), AUTO_VACUUM_INCREMENTAL);
}

/// Creates a file with `number` request ids that have large responses.
fn large(path: &Path, number: u32) {
    open(path).unwrap();
    let connection = Connection::open(path).unwrap();
    let sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
        INSERT INTO request (principal, workspace, id, method, session, fingerprint, life, begun_ms, ended_ms, answer, answer_bytes)
        SELECT 'p', 'w', i, 'm', 's', x'', 'l', 1, 1, randomblob(100000), 100000 FROM n";
    connection.execute(sql, [number]).unwrap();
}

#[test]
fn vacuum_shrinks_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    large(&path, 300);
    let size = || std::fs::metadata(&path).unwrap().len();
    assert!(size() > 30_000_000);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let database = Database::open(&path, false).unwrap();
    let delete = |connection: &Connection| connection.execute("DELETE FROM request", []);
    runtime.block_on(database.apply(delete)).unwrap();
    runtime.block_on(database.vacuum()).unwrap();
    drop(database);

    // The check in the background can still read the file. A checkpoint waits for its end.
    let connection = Connection::open(&path).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    assert!(size() < 4_000_000, "{}", size());
}

#[test]
fn startup_check_of_a_large_database_covers_its_first_tables() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    large(&path, 100);
    let intact = std::fs::read(&path).unwrap();
    // The responses: the call that reads them finds the damage.
    let mut bytes = intact.clone();
    let answers = bytes.len() / 2;
    bytes[answers..].fill(0x5a);
    std::fs::write(&path, &bytes).unwrap();
    open(&path).unwrap();
    // The first tables.
    let mut bytes = intact;
    bytes[8192..32768].fill(0x5a);
    std::fs::write(&path, &bytes).unwrap();
    let error = open(&path).unwrap_err();
    assert!(error.contains("is damaged"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn foreign_newer_or_damaged_database_is_rejected_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    let create = |sql: &str| {
        let _existed = std::fs::remove_file(&path);
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    };
    let assert_rejected = |expected: &str| {
        let before = std::fs::read(&path).unwrap();
        let error = open(&path).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    };
    create("CREATE TABLE request (a)");
    assert_rejected("not a database of jigd's");
    create(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 99"));
    let latest = MIGRATIONS.len();
    assert_rejected(&format!("schema version 99, this one supports up to {latest}"));
    std::fs::write(&path, "no database at all".repeat(1000)).unwrap();
    assert_rejected("is damaged");
    std::fs::remove_file(&path).unwrap();
    open(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[5000..].fill(0x5a);
    std::fs::write(&path, &bytes).unwrap();
    assert_rejected("is damaged");
}

#[test]
fn error_for_a_damaged_schema_names_the_damage_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    for (sql, expected) in [
        ("DROP TABLE job", "its column job.dialect is missing"),
        ("DROP INDEX job_by_state", "its index job_by_state is missing"),
        ("ALTER TABLE rule DROP COLUMN approval_id", "its column rule.approval_id is missing"),
        ("DELETE FROM fact", "its fact salt is missing"),
        (
            "PRAGMA user_version = 2",
            "its schema is not that of version 2: table approval already exists",
        ),
        ("PRAGMA user_version = -3", "its schema has the version -3"),
    ] {
        let _existed = fs::remove_file(&path);
        open(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let error = open(&path).unwrap_err();
        assert!(error.contains(&format!("is damaged ({expected})")), "{error}");
        assert!(error.contains("move it and the files beside it"), "{error}");
        assert!(!error.contains("CREATE"), "{error}");
    }
}

#[test]
fn non_file_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    let assert_rejected = || {
        let error = open(&path).unwrap_err();
        assert!(error.contains("not a database of jigd's"), "{error}");
    };
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert_rejected();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_rejected();
    fs::remove_dir(&path).unwrap();
    let elsewhere = directory.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    assert_rejected();
    assert!(!elsewhere.exists());
}

#[test]
fn emptied_database_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    // A new database is accepted even if earlier daemons have left records.
    Database::open(&path, true).unwrap();
    fs::write(&path, "").unwrap();
    let error = Database::open(&path, true).unwrap_err().to_string();
    assert!(error.contains("is empty, though"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"");
    open(&path).unwrap();
}

#[test]
fn schema_is_complete_without_the_files_beside_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.db");
    let database = Database::open(&path, false).unwrap();
    // As a killed daemon leaves it.
    let copy = directory.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    drop(database);
    let found = integrity::schema_parts(&Connection::open(&copy).unwrap()).unwrap();
    assert_eq!(found, integrity::schema_parts(&open_empty().unwrap()).unwrap());
}
