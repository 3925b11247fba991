//! What a program or the environment asks for.

use crate::awareness::{Awareness, AwarenessError, CudaAware, Source, VARIABLE};
use crate::error::CommunicatorError;
use crate::paths::Path;
use mpi::topology::Rank;

const PATH: &str = "PINYARD_MPI_PATH";
const CHUNK_BYTES: &str = "PINYARD_MPI_CHUNK_BYTES";
const CHUNKS: &str = "PINYARD_MPI_CHUNKS";
const RANKS_PER_NODE: &str = "PINYARD_MPI_RANKS_PER_NODE";
const CHECKS: &str = "PINYARD_MPI_CHECKS";

/// Bounds of a chunk's bytes.
const LEAST: usize = 4096;
const MOST: usize = 1 << 30;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// None: whatever is best.
    pub(crate) path: Option<Path>,
    pub(crate) chunk_bytes: usize,
    pub(crate) chunks: usize,
    /// None: detected.
    pub(crate) awareness: Option<Awareness>,
    /// Taken for a node: so many ranks that follow each other.
    pub(crate) ranks_per_node: Option<i32>,
    /// Whether collectives are compared that else would not be.
    pub(crate) checks: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            path: None,
            chunk_bytes: 1 << 20,
            chunks: 4,
            awareness: None,
            ranks_per_node: None,
            checks: false,
        }
    }
}

impl Settings {
    pub(crate) fn set_cuda_aware(&mut self, proof: Option<CudaAware>) {
        self.awareness = Some(Awareness { aware: proof.is_some(), source: Source::Program });
    }

    /// The environment's settings in place of those of the program, and the library's word
    /// where neither says whether MPI takes device pointers.
    pub(crate) fn with_environment(
        mut self,
        rank: Rank,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(Settings, Awareness), CommunicatorError> {
        let refused = |name, value, allowed| CommunicatorError::Environment { rank, name, value, allowed };
        if let Some(value) = variable(PATH) {
            self.path = match value.as_str() {
                "auto" => None,
                name => match Path::of(name) {
                    Some(path) => Some(path),
                    None => return Err(refused(PATH, value, "auto, direct, ipc, staged or ipc+staged")),
                },
            };
        }
        let number = |name, range: std::ops::RangeInclusive<usize>, allowed| match variable(name) {
            None => Ok(None),
            Some(value) => match value.parse().ok().filter(|number| range.contains(number)) {
                Some(number) => Ok(Some(number)),
                None => Err(refused(name, value, allowed)),
            },
        };
        if let Some(bytes) = number(CHUNK_BYTES, LEAST..=MOST, "4096 to 1073741824")? {
            self.chunk_bytes = bytes;
        }
        if let Some(count) = number(CHUNKS, 2..=64, "2 to 64")? {
            self.chunks = count;
        }
        if let Some(count) = number(RANKS_PER_NODE, 1..=1 << 20, "1 to 1048576")? {
            self.ranks_per_node = Some(count as i32);
        }
        if let Some(checks) = number(CHECKS, 0..=1, "0 or 1")? {
            self.checks = checks == 1;
        }
        let awareness = match (&self.awareness, variable(VARIABLE)) {
            (Some(awareness), None) => awareness.clone(),
            _ => Awareness::detect().map_err(|error| match error {
                AwarenessError::Override(value) => refused(VARIABLE, value, "0 or 1"),
                AwarenessError::NoMpi => CommunicatorError::NoMpi,
            })?,
        };
        Ok((self, awareness))
    }

    pub(crate) fn bounded_chunk(bytes: usize) -> usize {
        bytes.clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Settings, String> {
        let variable = move |asked: &str| (asked == name).then(|| value.to_owned());
        let mut settings = Settings::default();
        settings.set_cuda_aware(None);
        settings
            .with_environment(3, variable)
            .map(|(settings, _)| settings)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_goes_before_the_program() {
        assert_eq!(with(PATH, "ipc").unwrap().path, Some(Path::Ipc));
        assert_eq!(with(PATH, "auto").unwrap().path, None);
        assert_eq!(with(CHUNK_BYTES, "65536").unwrap().chunk_bytes, 65536);
        assert_eq!(with(CHUNKS, "2").unwrap().chunks, 2);
        assert_eq!(with(RANKS_PER_NODE, "2").unwrap().ranks_per_node, Some(2));
        assert_eq!(
            [CHECKS, CHUNKS].map(|name| with(name, "2").map(|set| set.checks).ok()),
            [None, Some(false)]
        );
        assert!(with(CHECKS, "1").unwrap().checks);
    }

    #[test]
    fn what_has_no_meaning_is_refused_with_what_may_be() {
        for (name, value) in [
            (PATH, "fast"),
            (CHUNK_BYTES, "4095"),
            (CHUNK_BYTES, "1e6"),
            (CHUNKS, "1"),
            (RANKS_PER_NODE, "0"),
        ] {
            let text = with(name, value).unwrap_err();
            assert!(text.starts_with(&format!("rank 3: {name}={value} is refused: ")), "{text}");
        }
    }
}
