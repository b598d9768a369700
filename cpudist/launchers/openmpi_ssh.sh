#!/bin/sh
# Open MPI 4 calls this in place of ssh: sh openmpi_ssh.sh HOST COMMAND
# Open MPI writes COMMAND for the login shell of this host's user. The login shell on HOST may be another one (csh, fish),
# so sh runs COMMAND there. Open MPI first asks for the shell, by `echo $SHELL`. We answer bash, because for other Bourne
# shells it reads .profile.
host=$1
shift
# Quoted for any shell: within single quotes csh reads exclamation marks and fish reads backslashes.
command=$(printf '%s' "$*" | sed "s/['\\\\!]/'\\\\&'/g")
exec ssh -x "$host" "env SHELL=/bin/bash sh -c '$command'"
