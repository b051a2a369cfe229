@echo off
setlocal DisableDelayedExpansion
rem From here, as a path with % or ^ in it does not outlive a call; train_gpu.py goes back to where one was.
set "TRAINDECK_CALLED_FROM=%CD%"
cd /d "%~dp0"
rem Foreign Python settings and places to install to must not leak in; package sources (pip.ini, PIP_INDEX_URL,
rem PIP_CERT ...) stay, they are the user's own. ASCII only: cmd reads this file in the OEM code page.
for %%v in (PYTHONHOME PYTHONPATH PYTHONSTARTUP PYTHONUSERBASE PYTHONEXECUTABLE PYTHONIOENCODING) do set "%%v="
for %%v in (CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE CONDA_PYTHON_EXE CONDA_SHLVL VIRTUAL_ENV) do set "%%v="
for %%v in (PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_REQUIRE_VIRTUALENV PIP_PYTHON) do set "%%v="
set "PYTHONUTF8=1"

rem Each candidate is run: the Microsoft Store's placeholder only prints a hint and fails.
rem With .exe, for a python.bat (pyenv-win has one) would take over and never come back.
set "PY="
rem An update that was cut off may have left only the last two. home.txt: where they are, if not here.
set "APART="
if exist .venv-setup\home.txt for /f "usebackq delims=" %%h in (".venv-setup\home.txt") do call set "APART=%%h"
for %%n in (.venv .venv.old .venv.new) do (
  call :try "%%n\Scripts\python.exe"
  if defined APART call :try "%APART%\%%n\Scripts\python.exe"
)
call :in ".venv-setup\python" cpython-3*
call :try py.exe -3
call :try python.exe
call :in "%LOCALAPPDATA%\Programs\Python" Python3*
call :in "%PROGRAMFILES%" Python3*
call :in "%SYSTEMDRIVE%\." Python3*
call :in "%USERPROFILE%\.pyenv\pyenv-win\versions" 3*
call :in "%APPDATA%\uv\python" cpython-3*
call :in "%USERPROFILE%" *conda3
if not defined PY call :download
if not defined PY (
  echo Traindeck needs Python 3.11, 3.12 or 3.13 ^(64 bit^). It found none and could not download one.
  echo Install Python 3.12 from https://www.python.org/downloads/windows/ and start train_gpu.bat again.
  call :chinese launcher\no_python.zh.txt
  set "CODE=1"
  goto end
)
%PY% -I -X utf8 "%~dp0train_gpu.py" %*
set "CODE=%ERRORLEVEL%"

:end
rem Keep the words on the screen if this was double-clicked (cmd /c, no arguments) and something failed.
set "LINE=%CMDCMDLINE:"=%"
set "LINE=%LINE:"=%"
if not "%CODE%"=="0" if "%~1"=="" if not "%LINE:train_gpu.bat=%"=="%LINE%" pause
exit /b %CODE%

:try
if not defined PY %* -I -S -c "import sys; sys.exit(sys.version_info < (3, 6))" >nul 2>nul && set PY=%*
exit /b 0

:in
rem Each folder of this name there. Without a path, because a pattern in quotes is none for the cmd of Wine.
if defined PY exit /b 0
pushd %1 2>nul || exit /b 0
for /d %%d in (%2) do call :try "%%~fd\python.exe"
popd
exit /b 0

:download
rem No Python: uv installs one below .venv-setup. Its wheel is a zip. curl and tar came with Windows 10 in 2018; PowerShell
rem is the second way. The hash is that of version 0.13.9 (launcher\uv.py); UV_PYTHON_INSTALL_MIRROR is for the Python.
echo No Python 3.11, 3.12 or 3.13 was found. Downloading one for Traindeck (60 MB).
call :chinese launcher\get_python.zh.txt
set "UV=.venv-setup\uv-0.13.9\bin\uv.exe"
md .venv-setup\uv-0.13.9\bin 2>nul
for %%m in (https://files.pythonhosted.org https://pypi.tuna.tsinghua.edu.cn https://mirrors.aliyun.com/pypi) do call :uv %%m
if not exist "%UV%" exit /b 1
call :python
if not defined PY if not defined UV_PYTHON_INSTALL_MIRROR (
  set "UV_PYTHON_INSTALL_MIRROR=https://mirror.nju.edu.cn/github-release/astral-sh/python-build-standalone"
  call :python
)
exit /b 0

:uv
if exist "%UV%" exit /b 0
set "URL=%1/packages/dd/ef/ceeabf3631117f7354787d9fb1ffe943899e59ed4b887a696ed547e47e76/uv-0.13.9-py3-none-win_amd64.whl"
set "SHELL=powershell.exe -NoProfile -Command $ProgressPreference='SilentlyContinue';"
curl.exe -fsSL --retry 3 --connect-timeout 15 -o .venv-setup\uv.zip %URL% 2>nul ^
  || %SHELL% [Net.ServicePointManager]::SecurityProtocol='Tls12'; Invoke-WebRequest -UseBasicParsing %URL% -OutFile .venv-setup\uv.zip >nul 2>nul
set "HASH="
for /f "skip=1 delims=" %%h in ('certutil.exe -hashfile .venv-setup\uv.zip SHA256 2^>nul') do if not defined HASH set "HASH=%%h"
if defined HASH set "HASH=%HASH: =%"
if /i not "%HASH%"=="6a44b2ed8111d2f60d2b92627c5dccda3f7ed7570b18ce115e569cd68c28246b" exit /b 1
tar.exe -xf .venv-setup\uv.zip -C .venv-setup\uv-0.13.9\bin --strip-components=2 uv-0.13.9.data/scripts/uv.exe 2>nul
if not exist "%UV%" (
  %SHELL% Expand-Archive -Force .venv-setup\uv.zip .venv-setup\uv.part >nul 2>nul
  move .venv-setup\uv.part\uv-0.13.9.data\scripts\uv.exe "%UV%" >nul 2>nul
  rd /s /q .venv-setup\uv.part 2>nul
)
del .venv-setup\uv.zip
exit /b 0

:python
"%UV%" python install 3.12 --no-config --no-bin --no-registry --install-dir .venv-setup\python
call :in ".venv-setup\python" cpython-3*
exit /b 0

:chinese
rem The same in a console that shows Chinese: it reads the file as UTF-8, and goes back to its own code page.
for /f "tokens=2 delims=:." %%p in ('chcp') do set /a PAGE=%%p
if not "%PAGE%"=="936" exit /b 0
chcp 65001 >nul
type %1
chcp %PAGE% >nul
exit /b 0
