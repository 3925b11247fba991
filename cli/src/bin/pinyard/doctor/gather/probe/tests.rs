//! Questions to processes that hang, crash and chatter, and to libraries made up of C.
#![allow(clippy::unwrap_used)]

use super::*;
use std::fs;

fn shell(script: &str, limit: Duration) -> Question {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Question::start(command, limit)
}

fn version(script: &str) -> Result<Version, String> {
    shell(script, LIBRARY_LIMIT).answer()
}

#[test]
fn the_answer_is_found_among_what_a_library_prints() {
    let answer = r#"pinyard-answer {"Ok":[2,6,0]}"#;
    assert_eq!(version(&format!("echo noise; echo '{answer}'; echo more")), Ok(Version(2, 6, 0)));
    // More than a pipe holds, which would stop a process that nobody reads.
    assert_eq!(version(&format!("yes noise | head -n 50000; echo '{answer}'")), Ok(Version(2, 6, 0)));
    assert_eq!(
        version(r#"echo 'pinyard-answer {"Err":"no such symbol"}'"#),
        Err("no such symbol".to_owned())
    );
}

#[test]
fn a_process_without_an_answer_says_how_it_ended() {
    let why = version("kill -SEGV $$").unwrap_err();
    assert!(why.contains("ended the process that asked it") && why.contains("SIGSEGV"), "{why}");
    let why = version("echo 'pinyard-answer [1'").unwrap_err();
    assert!(why.starts_with("its answer: "), "{why}");
    let none =
        Question::start(Command::new("/nowhere/at-all"), LIBRARY_LIMIT).answer::<Version>().unwrap_err();
    assert!(none.contains("a process for the question: No such file"), "{none}");
}

#[test]
fn a_hang_ends_at_its_limit_and_leaves_no_process() {
    let limit = Duration::from_secs(1);
    let question = shell("exec sleep 1000", limit);
    let id = question.asked.as_ref().map(|asked| asked.child.id()).unwrap();
    assert_eq!(question.answer::<Version>(), Err("no answer within 1 s".to_owned()));
    assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "{id} is still there");
}

#[test]
fn a_process_that_is_left_behind_is_not_waited_for() {
    let question = shell("sleep 7 & echo first; echo second", Duration::from_secs(60));
    let (status, lines) = question.lines().unwrap();
    assert!(status.success());
    assert_eq!(lines, ["first", "second"]);
}

/// A shared library of this source, which goes with the folder.
fn library(folder: &tempfile::TempDir, name: &str, source: &str) -> String {
    let (source_file, path) =
        (folder.path().join(format!("{name}.c")), folder.path().join(format!("lib{name}.so")));
    fs::write(&source_file, source).unwrap();
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(source_file).status();
    assert!(status.unwrap().success(), "cc of {name}");
    path.to_string_lossy().into_owned()
}

#[test]
fn each_kind_of_library_is_asked_in_its_own_way() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, source: &str| library(&folder, name, source);
    let fabric = made("fabric", "unsigned fi_version(void) { return 2u << 16 | 6; }");
    assert_eq!(libfabric(&fabric), Ok(Version(2, 6, 0)));
    let ucp = made(
        "ucp",
        "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1; *b = 21; *c = 3; }",
    );
    assert_eq!(ucx(&ucp), Ok(Version(1, 21, 3)));
    let get = "int MPI_Get_library_version(char *name, int *length) {\
                const char *text = \"Open MPI v9.9.9, package: x\";\
                *length = __builtin_strlen(text); __builtin_memcpy(name, text, *length + 1); return 0; }";
    let cuda = |built: &str| {
        mpi(&made(&format!("open{}", built.len()), &format!("{get}{built}"))).map(|answer| answer.cuda)
    };
    assert_eq!(cuda(""), Ok(CudaAware::Unknown));
    assert_eq!(cuda("_Bool opal_built_with_cuda_support = 1;"), Ok(CudaAware::Yes));
    assert_eq!(cuda("_Bool opal_built_with_cuda_support  = 0;"), Ok(CudaAware::No));
    // Before MPI_Init only a yes counts.
    assert_eq!(cuda("int MPIX_Query_cuda_support(void) { return 0; }"), Ok(CudaAware::Unknown));
    assert_eq!(cuda("int MPIX_Query_cuda_support(void)  { return 1; }"), Ok(CudaAware::Yes));
    // MPICH must not be asked by the function, which ends the process.
    let mpich = "char MPII_Version_string[] = \"4.0.2\"; char MPII_Version_configure[] = \"--with-cuda=/opt\";\
                  int MPI_Get_library_version(char *name, int *length) { __builtin_trap(); }";
    let answer = mpi(&made("mpich", mpich));
    assert_eq!(answer, Ok(MpiAnswer { name: "MPICH 4.0.2".to_owned(), cuda: CudaAware::Yes }));
}

#[test]
fn a_library_that_cannot_be_asked_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let empty = library(&folder, "empty", "");
    for why in [libfabric(&empty).unwrap_err(), ucx(&empty).unwrap_err(), mpi(&empty).unwrap_err()] {
        assert!(why.contains("undefined symbol"), "{why}");
    }
    let none = folder.path().join("none.so");
    let why = libfabric(&none.to_string_lossy()).unwrap_err();
    assert!(why.contains("cannot open shared object file"), "{why}");
    let refuses = library(&folder, "refuses", "int MPI_Get_library_version(char *a, int *b) { return 16; }");
    assert_eq!(mpi(&refuses), Err("MPI_Get_library_version: 16".to_owned()));
}
