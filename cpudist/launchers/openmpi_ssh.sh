#!/bin/sh
# Open MPI 4 calls this in place of ssh: sh openmpi_ssh.sh HOST COMMAND
# It writes the command for the login shell of this host's user, and the other host may have another one (csh, fish). So
# sh runs it there. Open MPI asks for the shell first, by `echo $SHELL`; bash is the one for which it reads no .profile.
host=$1
shift
# Quoted for any shell: within single quotes csh reads exclamation marks and fish reads backslashes.
command=$(printf '%s' "$*" | sed "s/['\\\\!]/'\\\\&'/g")
exec ssh -x "$host" "env SHELL=/bin/bash sh -c '$command'"
